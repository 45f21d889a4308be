"""The code of a rung runs beside the user's file, and its losses are those of the rung."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _rungs
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.training._settings import math_modes
from tests.collection.steps.ladder.conftest import STEPS, answered
from tests.one_test import one_test
from tests.rare import rare

TRIED = [
    *(("convolutions", rung) for rung in ("amp", "channels_last", "checkpoint", "patched")),
    *(("attention", rung) for rung in ("fused_optimizer", "accumulate", "patched")),
    *(("custom", rung) for rung in ("amp", "patched")),
    *(rare(step, "float32") for step in ("convolutions", "custom")),
]
GPU = [rung.name for rung in _rungs.rungs() if rung.graph or rung.streams or rung.attention or rung.compiled]


def sheet_of(step):
    known = answered(step)
    return StepSheet(**{**known, "gives": tuple(known["gives"])})


def code_of(step, name, dtype="bfloat16"):
    sheet = sheet_of(step)
    rung = next(one for one in _rungs.of_sheet(sheet) if one.name == name)
    return ladder.code(rung, dtype, f"{step}.py", sheet.gives, sheet.size)


@pytest.fixture
def run(monkeypatch, capsys):
    """run(code): the losses that a program prints."""
    monkeypatch.syspath_prepend(str(STEPS))

    def losses(code):
        torch.manual_seed(1)
        exec(compile(code, "faster.py", "exec"), {})
        return [float(loss) for loss in re.findall(r"loss (\S+)", capsys.readouterr().out)]

    with math_modes(tf32=False):  # which gives back what a program sets
        yield losses
    for name in ("convolutions", "attention", "custom"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("step", "rung"), TRIED)
def test_the_code_of_a_rung_trains(run, step, rung):
    losses = run(code_of(step, rung))
    assert len(losses) == 10
    assert losses[-1] < losses[0]


def test_the_code_in_float16_scales_the_loss_and_updates(run):
    losses = run(code_of("attention", "fused_optimizer", "float16"))
    assert losses[-1] < losses[0]


@one_test("name", GPU)
def test_the_code_of_rungs_for_a_gpu_is_python(name):
    sheet = replace(sheet_of("attention"), convolutions=True)
    rung = next(one for one in _rungs.of_sheet(sheet) if one.name == name)
    text = ladder.code(rung, "bfloat16", "step.py", ("model", "batch", "loss"), 8)
    compile(text, "faster.py", "exec")
    assert ("graph.replay()" in text) is rung.graph
    assert ("torch.compile(" in text) is bool(rung.compiled)
    assert ("nn.patch(" in text) is rung.patched
    assert ("sdpa_kernel(" in text) is bool(rung.attention)


def test_the_code_of_a_librarys_model_has_its_batch():
    text = ladder.code(_rungs.FLOAT32, "bfloat16", "timm:vit_base_patch16_224", (), 64)
    assert "user = given('timm:vit_base_patch16_224', 64)" in text
    assert "loss = user.loss(model, *given, **named)" in text
    compile(text, "faster.py", "exec")


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU)
def test_the_code_of_a_rung_runs_on_the_gpu(run, name):
    sheet = sheet_of("attention")
    rung = next(one for one in _rungs.of_sheet(sheet) if one.name == name)
    code = ladder.code(rung, "bfloat16", "attention.py", sheet.gives, sheet.size)
    if name == "sdpa_cudnn":  # cuDNN decides which heads it takes
        with suppress(RuntimeError):
            run(code)
        return
    losses = run(code)
    assert losses[-1] < losses[0]
