"""Gradients that are clipped by their global norm: what the optimizer is given, and which mistakes are found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps.training import _first_step, _scaling, _steps, _trainer
from harness.collection.steps.training._ladders import LADDERS, rung_of
from harness.collection.steps.training._rungs import AMP, FLOAT32, UNSCALE
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.model import Case
from harness.ops import Catalogue, known_cases
from tests.rare import rare

CATALOGUE = Catalogue()
CLIP = 0.05
"""Below the norm that a toy's gradients have."""
SETUP = Setup("bert_toy", 8, 1, torch.device("cpu"), torch.float16, clip=CLIP)
RUNGS = [
    rung_of("bert_train", name)
    for name in ("float32", "amp", "unscale", "fused_optimizer", "sdpa_half", "fused_norm_adam")
]


def norm_of(trainer):
    """What the optimizer has seen in the first step."""
    found = [one.grad for one in _first_step._trained(trainer, trainer.masters)]
    return float(torch.stack([grad.norm() for grad in found if grad is not None]).norm())


@pytest.mark.parametrize("rung", [*map(rare, RUNGS[:4]), *RUNGS[4:]], ids=lambda rung: rung.name)
def test_the_optimizer_sees_gradients_of_this_norm(rung):
    trainer = Trainer(rung, SETUP)
    trainer.loss_of_step()
    assert norm_of(trainer) == pytest.approx(CLIP, rel=1e-2)
    assert not _first_step.complaints(rung, SETUP)


def test_smaller_gradients_stay():
    found = []
    for clip in (None, 1e3):
        trainer = Trainer(AMP, replace(SETUP, clip=clip))
        trainer.loss_of_step()
        found.append(norm_of(trainer))
    assert found[0] == found[1] > 10 * CLIP
    assert not _first_step.complaints(AMP, replace(SETUP, clip=1e3))


@pytest.mark.parametrize("rung", [AMP, rung_of("bert_train", "fused_norm_adam")], ids=lambda rung: rung.name)
def test_gradients_that_are_not_clipped_are_found(rung, monkeypatch):
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_, **__: None)
    assert "the gradient in the first step is off" in "".join(_first_step.complaints(rung, SETUP))


def test_a_norm_of_scaled_gradients_is_found(monkeypatch):
    monkeypatch.setattr(torch.amp.GradScaler, "unscale_", lambda *_: None)
    monkeypatch.setattr(_trainer, "_scaler", lambda _: Unscaling)
    assert "the gradient in the first step is off" in "".join(_first_step.complaints(AMP, SETUP))


class Unscaling(torch.amp.GradScaler):  # type: ignore[misc] # torch has no types
    """Unscales in its step alone, after the clipping."""

    real = torch.amp.GradScaler.unscale_

    def step(self, optimizer):
        self.real(optimizer)
        return super().step(optimizer)


@pytest.mark.parametrize("rung", [AMP, UNSCALE, rung_of("bert_train", "fused_norm_adam")], ids=lambda rung: rung.name)
def test_a_step_that_overflows_is_skipped(rung, monkeypatch):
    monkeypatch.setattr(_trainer, "SCALE", 2.0**60)
    trainer = Trainer(rung, SETUP)
    before = [weight.detach().clone() for weight in trainer.weights]
    trainer.loss_of_step()
    assert all(one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
    assert trainer.scaler.get_scale() == 2.0**59


@pytest.mark.slow  # test_the_optimizer_sees_gradients_of_this_norm has what a step clips
def test_the_reference_s_losses_are_of_clipped_gradients_too():
    """Adam hardly minds the size of gradients, but for steps that are clipped by another factor."""
    wide = replace(SETUP, dtype=torch.float64)
    found = [_steps._reference_losses(replace(wide, clip=clip)) for clip in (None, CLIP)]
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], rel=0.05)


# ---- Cases.


def case(op, variant, dtype="float16", **choices):
    given = {name: choices.get(name, choice.usual) for name, choice in CATALOGUE[op].choices.items()}
    return known_cases.recognised(Case(op, variant, dtype, (("B", 8),), tuple(given.items())), CATALOGUE)


@pytest.mark.parametrize("op", ["bert_train", "bert_scaling"])
def test_the_id_of_a_case_without_clipping_says_nothing_and_tables_do(op):
    variant = next(iter(CATALOGUE[op].variants))
    assert "clip" not in case(op, variant).id
    assert "clip=none" in case(op, variant).choices_text
    assert "clip=1" in case(op, variant, clip=1.0).id


def test_what_cannot_be_clipped_is_told():
    for rung in LADDERS["bert_train"]:
        asked = case("bert_train", rung.name, clip=1.0)
        assert bool(_steps.refusal(rung)(asked)) == (rung.name == "half"), rung.name
        if rung.name not in ("unscale", "unscale_loop"):
            assert _steps.refusal(rung)(replace(asked, dtype="bfloat16")) is None
    assert "float16" in _steps.refusal(rung_of("bert_train", "half"))(case("bert_train", "half", clip=1.0))


@pytest.mark.parametrize(("value", "clip"), [("none", None), (1.0, 1.0)])
def test_a_case_s_choice_reaches_its_trainings(value, clip):
    asked = case("bert_train", "amp", clip=value)
    given = {"case": asked, "s": SimpleNamespace(**asked.values), "device": SETUP.device, "dtype": SETUP.dtype}
    ctx = SimpleNamespace(**given, generator=torch.Generator(), group=SimpleNamespace(rank=0, size=1))
    assert _steps.setup_of(ctx).clip == _scaling.setup_of(ctx).clip == clip


@pytest.mark.slow  # the tests above have that the choice is taken, and what a rung does then
def test_a_case_with_clipping_is_right_on_a_cpu(ready):
    with ready("bert_train", FLOAT32.name, clip=1.0) as session:
        assert session.check() is None
        assert session._prepared.first.steps.trainer.setup.clip == 1.0
