"""Rungs with our operators, which fall back to plain torch here: what they are given, and that they train alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from harness import nn
from harness.ops.training import _steps
from harness.ops.training._rungs import BERT, FLOAT32, RESNET, SWIN, UNSCALE, Rung
from harness.ops.training._trainer import Setup, Trainer

LADDERS = {"resnet_toy": RESNET, "bert_toy": BERT, "swin_toy": SWIN}
OURS = [
    pytest.param(model, rung, id=f"{model}-{rung.name}")
    for model, rungs in LADDERS.items()
    for rung in rungs
    if rung.role == "ours" and not rung.graph
]


def losses(rung: Rung, model: str, dtype: torch.dtype = torch.float16) -> list[float]:
    trainer = Trainer(rung, Setup(model, 8, 1, torch.device("cpu"), dtype))
    return [trainer.loss_of_step().item() for _ in range(_steps.STEPS)]


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[float]]:
    return {model: losses(FLOAT32, model, torch.float64) for model in LADDERS}


@pytest.mark.parametrize(("model", "rung"), OURS)
def test_losses_fall_as_those_of_float32(model, rung, wanted, monkeypatch):
    real = torch.compile
    options = {"backend": "aot_eager", "fullgraph": True, "dynamic": False}
    monkeypatch.setattr(torch, "compile", lambda made, **_: real(made, **options))
    fall = wanted[model][0] - min(wanted[model])
    found = losses(rung, model)
    assert max(abs(one - other) for one, other in zip(found, wanted[model], strict=True)) < _steps.ALLOWED * fall


def test_a_rung_keeps_what_those_above_have():
    """But for the rungs beside the ladder, which take something back."""
    beside = {"unscale", "half", "compile_ours"}
    for rungs in (SWIN, BERT):
        ladder = [rung for rung in rungs if rung.role == "ours" and rung.name not in beside]
        assert [rung.name for rung in ladder][-1] == "graph"
        for lower, higher in pairwise(ladder):
            for part in ("tf32", "unscale", "adam", "norm", "windows", "attention", "graph", "sdpa"):
                assert getattr(higher, part) >= getattr(lower, part), (lower.name, higher.name, part)


def test_the_ladder_of_swin_is_that_of_the_talk():
    names = [rung.name for rung in SWIN]
    talk = ["float32", "tf32", "amp", "fused_norm_adam", "windows", "attention", "graph"]
    assert [name for name in names if name in talk] == talk
    assert len(set(names)) == len(names)


def test_rungs_have_our_optimizer_scaler_and_operators():
    setup = Setup("swin_toy", 4, 1, torch.device("cpu"), torch.float16)
    (attention,) = (rung for rung in SWIN if rung.name == "attention")
    trainer = Trainer(attention, setup)
    assert isinstance(trainer.optimizer, nn.AdamW)
    assert isinstance(trainer.scaler, nn.GradScaler)
    assert trainer.model.operators.window_attention is nn.window_attention
    assert trainer.model.operators.window_partition is nn.window_partition
    without = Trainer(replace(attention, attention=False, windows=False), setup).model.operators
    assert without.window_attention is None
    assert without.window_partition is not nn.window_partition
    assert isinstance(Trainer(UNSCALE, setup).scaler, nn.GradScaler)


def test_halves_have_masters_in_the_optimizer_alone():
    (half,) = (rung for rung in SWIN if rung.name == "half")
    trainer = Trainer(half, Setup("swin_toy", 4, 1, torch.device("cpu"), torch.float16))
    assert all(one is other for one, other in zip(trainer.weights, trainer.masters, strict=True))
    assert {one.dtype for one in trainer.weights} == {torch.float16}
