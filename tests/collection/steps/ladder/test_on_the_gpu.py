"""Users' steps on a GPU: every rung of tiny models is right, and the ladder of Swin-T agrees with the bundled one."""

from __future__ import annotations

import importlib.util
import os
import re
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _learning, _rungs
from harness.collection.steps.ladder._code_ranks import PROGRAM, Ranks
from harness.collection.steps.ladder._declared import step_of
from harness.collection.steps.ladder._sheet import StepSheet
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Op
from harness.processes.supervisor import Workers
from harness.profile._procedure import profile
from tests.collection.steps.ladder.conftest import STEPS

pytestmark = pytest.mark.gpu
IMAGES = 128
RUNGS = [rung.name for rung in _rungs.rungs()]
ATTEMPTS = 3
"""Tests beside this one use the GPU, which the check of times takes for hidden work where it lasts."""
MAY_FAIL = {"sdpa_cudnn", "sdpa_flash"}
"""Backends that take no heads of any size: such a rung may say that it fails."""


def answered(source: str, size: int = 32, world: int = 1) -> dict[str, Any]:
    return ladder.survey({"source": source, "device": "cuda", "size": size, "prefix": "ladder_", "world": world})


@cache
def op_of(source: str, size: int = 32) -> Op:
    known = answered(source, size)
    return ladder.op(**known)


def measured(op, rung, size, dtype="bfloat16", *, timed=True, **choices):
    from harness import devices, measure

    case = Case(op.name, rung, dtype, (("B", size),), tuple(choices.items()))
    for _ in range(ATTEMPTS):
        found = measure.measure(Job(case, Timing(0.005, 1.0, 300.0)), op, devices.kinds()["cuda"], timed=timed)
        if "another process uses" not in (found.error or ""):
            break
    return found


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("step", ["convolutions", "attention"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_rung_of_a_tiny_model_is_right(step, rung, dtype):
    op = op_of(str(STEPS / f"{step}.py"))
    if rung in MAY_FAIL:
        pytest.skip("the backend decides which heads it takes")
    found = measured(op, rung, 8, dtype, timed=False)
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


GAN = ("float32", "amp", "fused_optimizer", "graph", "compile", "compile_graph", "patched", "patched_graph")


@pytest.mark.parametrize("rung", GAN)
def test_a_gan_with_two_optimizers_has_its_rungs(rung):
    """The average of its generator's weights is in a global variable, which a graph updates, too."""
    found = measured(op_of(str(STEPS / "gan.py")), rung, 16)
    assert found.status == "ok", found.error


@pytest.mark.alone
def test_swin_by_a_users_file_takes_as_long_as_the_bundled_step(tmp_path):
    """In turns, three times each: the medians agree within 2%.

    Both are torch's fused optimizer as a CUDA graph of the step, whose time is the GPU's, however slow the host is.
    """
    step = tmp_path / "swin.py"
    step.write_text((STEPS / "swin.py").read_text().replace(" 32,", f" {IMAGES},"))
    op, other = op_of(str(step), IMAGES), Catalogue()["swin_train"]
    asked = {name: choice.usual for name, choice in other.choices.items()} | {"model": "swin_tiny", "step": "graph"}
    turns = [(measured(op, "graph", IMAGES), measured(other, "fused_optimizer", IMAGES, **asked)) for _ in range(3)]
    assert [one.error for turn in turns for one in turn if one.status != "ok"] == []
    ours, theirs = (statistics.median(one.time for one in column) for column in zip(*turns, strict=True))
    assert abs(ours / theirs - 1) < 0.02


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm isn't installed")
def test_a_model_of_timm_has_its_rungs():
    op = op_of("timm:vit_tiny_patch16_224")
    for rung in ("amp", "patched", "patched_graph"):
        found = measured(op, rung, 32)
        assert found.status == "ok", found.error


ON_TWO = {
    "eager": ("float32", "tf32", "amp", "fused_optimizer", "accumulate", "checkpoint", "patched"),
    "graphs": ("graph", "patched_graph"),
    "parts": ("static_graph", "fsdp", "fsdp_keep", "patched_fsdp"),
    "compiled": ("compile", "compile_graph"),
    "parts_compiled": ("fsdp_compile", "patched_fsdp_compile", "fsdp_compile_graph", "patched_fsdp_compile_graph"),
    "parts_graphs": ("fsdp_graph", "patched_fsdp_graph"),
}
KINDS = {
    ("attention", "bfloat16"): tuple(ON_TWO),
    ("attention", "float16"): ("eager", "graphs", "parts", "parts_graphs"),
    ("convolutions", "bfloat16"): ("eager", "graphs", "parts", "parts_graphs"),
    # SGD of parts isn't fused, so that float16 has no graph of it.
    ("convolutions", "float16"): ("eager", "graphs", "parts"),
}


def skip_without_two_gpus() -> None:
    from harness import devices

    if (devices.kinds()["cuda"].count or 0) < 2:
        pytest.skip("needs 2 GPUs")


@pytest.mark.parametrize(("step", "dtype"), KINDS)
def test_rungs_are_right_on_two_gpus(tmp_path, step, dtype):
    """One team of ranks measures all rungs: it takes longer to start than a rung to run."""
    skip_without_two_gpus()
    known = answered(str(STEPS / f"{step}.py"), world=2)
    plugin = tmp_path / "ladder.py"
    plugin.write_text(ladder.plugin(known))
    found = {}
    with Workers("cuda", [plugin]) as workers:
        for kind in KINDS[step, dtype]:
            for rung in ON_TWO[kind]:
                case = Case(known["name"], rung, dtype, (("B", 8),), world=2)
                found[kind, rung] = workers.measure(Job(case, Timing(0.02, 0.3, 300.0)))
    # Only what a step has nothing for isn't measured.
    errors = {name: one.error for name, one in found.items() if one.status not in ("ok", "unsupported")}
    assert errors == {}
    tells = {kind for (kind, _), one in found.items() if "communication" in dict(one.facts)}
    assert tells == {*KINDS[step, dtype]}


@pytest.mark.parametrize("tool", ["torch", "losses"])
def test_tools_run_rungs_on_two_gpus(tmp_path, tool):
    """Traces of both ranks are laid over each other, and trainings from seeds learn as float32 does."""
    skip_without_two_gpus()
    known = answered(str(STEPS / "attention.py"), world=2)
    plugin = tmp_path / "ladder.py"
    plugin.write_text(ladder.plugin(known))
    jobs = [
        Job(Case(known["name"], rung, "bfloat16", (("B", 8),), world=2)) for rung in ("float32", "amp", "graph", "fsdp")
    ]
    options = {"options": {"seeds": 3, "steps": 12}} if tool == "losses" else {}
    found = profile(tool, jobs, device="cuda", plugins=[plugin], folder=tmp_path, told=lambda *_: None, **options)
    assert {ran.case: ran.error for ran in found.cases if ran.status != "ok"} == {}
    series = [dict(one.series) for one in found.attachments]
    if tool == "torch":
        assert [one["rank"] for one in series] == [(0, 1)] * 4
        assert all(one["rank_sending"][0] + one["rank_computing"][0] > 0 for one in series)
    else:
        means = [statistics.fmean(one["means"]) for one in series]
        assert means == [pytest.approx(means[0], rel=0.05)] * 4


@pytest.mark.parametrize("rung", ["accumulate", "patched_graph", "compile", "patched_fsdp", "fsdp_graph"])
def test_torchrun_trains_on_two_gpus_by_the_code_of_a_rung(tmp_path, rung):
    skip_without_two_gpus()
    known = answered(str(STEPS / "attention.py"), world=2)
    sheet = StepSheet(**known)
    (one,) = (one for one in _rungs.of_sheet(sheet) if one.name == rung)
    (tmp_path / "attention.py").write_text((STEPS / "attention.py").read_text())
    (tmp_path / PROGRAM).write_text(ladder.code(one, "bfloat16", "attention.py", sheet.gives, 8, Ranks(2)))
    command = [sys.executable, "-m", "torch.distributed.run", *Ranks(2).command.split()[1:]]
    around = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[4]), *sys.path])}
    done = subprocess.run(command, cwd=tmp_path, env=around, capture_output=True, text=True, check=False, timeout=300)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 10, done.stderr
    assert losses[-1] < losses[0]
