"""Users' steps on a GPU: every rung of tiny models is right, and the ladder of Swin-T agrees with the bundled one."""

from __future__ import annotations

import importlib.util
import statistics
from functools import cache

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _learning, _rungs
from harness.collection.steps.ladder._declared import step_of
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Op
from tests.collection.steps.ladder.conftest import STEPS

pytestmark = pytest.mark.gpu
RUNGS = [rung.name for rung in _rungs.rungs()]
MAY_FAIL = {"sdpa_cudnn", "sdpa_flash"}
"""Backends that take no heads of any size: such a rung may say that it fails."""


@cache
def op_of(source: str) -> Op:
    known = ladder.survey({"source": source, "device": "cuda", "size": 32, "prefix": "ladder_", "world": 1})
    return ladder.op(**{**known, "gives": tuple(known["gives"])})


def measured(op, rung, size, dtype="bfloat16", **choices):
    from harness import devices, measure

    case = Case(op.name, rung, dtype, (("B", size),), tuple(choices.items()))
    return measure.measure(Job(case, Timing(0.005, 1.0, 300.0)), op, devices.kinds()["cuda"])


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("step", ["convolutions", "attention"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_rung_of_a_tiny_model_is_right(step, rung, dtype):
    op = op_of(str(STEPS / f"{step}.py"))
    if rung in MAY_FAIL:
        pytest.skip("the backend decides which heads it takes")
    found = measured(op, rung, 8, dtype)
    assert found.status in ("ok", "unsupported"), found.error


def test_a_custom_autograd_function_runs_under_every_rung_that_it_can():
    op = op_of(str(STEPS / "custom.py"))
    found = {rung: measured(op, rung, 16) for rung in ("float32", "tf32", "amp", "fused_optimizer", "graph", "compile")}
    assert {name: one.error for name, one in found.items() if one.status != "ok"} == {}


def test_a_model_that_cant_be_compiled_keeps_its_other_rungs():
    from harness.errors import UsageError

    op = op_of(str(STEPS / "uncompilable.py"))
    with pytest.raises(UsageError, match=r"torch\.compile can't compile the model"):
        measured(op, "compile", 8)
    assert measured(op, "graph", 8).status == "ok"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rung", ["graph", "patched_graph", "compile", "patched_compile_graph"])
def test_longer_trainings_learn_as_float32_does(rung, dtype):
    op = op_of(str(STEPS / "attention.py"))
    plain, found = (
        _learning.trained(*step_of(op.variants[name]), dtype, torch.device("cuda"), seed=1, steps=24)
        for name in ("float32", rung)
    )
    assert statistics.fmean(found.losses) == pytest.approx(statistics.fmean(plain.losses), rel=0.05)
    assert len(found.losses) == 24


@pytest.mark.alone
@pytest.mark.parametrize(("own", "bundled"), [("amp", "amp"), ("fused_optimizer", "fused_optimizer")])
def test_swin_by_a_users_file_takes_as_long_as_the_bundled_step(own, bundled):
    """In turns, three times each: the medians agree within 2%."""
    op, other = op_of(str(STEPS / "swin.py")), Catalogue()["swin_train"]
    model = {name: choice.usual for name, choice in other.choices.items()} | {"model": "swin_tiny"}
    times = [(measured(op, own, 32).time, measured(other, bundled, 32, **model).time) for _ in range(3)]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    assert abs(ours / theirs - 1) < 0.02


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm isn't installed")
def test_a_model_of_timm_has_its_rungs():
    op = op_of("timm:vit_tiny_patch16_224")
    for rung in ("amp", "patched", "patched_graph"):
        found = measured(op, rung, 32)
        assert found.status == "ok", found.error
