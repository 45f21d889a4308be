"""Longer trainings of toys: their data can be learned, and steps that overflow change nothing, whatever the rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from harness.collection.steps.training import _curves, _ladders
from harness.collection.steps.training._curves import trained
from harness.collection.steps.training._rungs import AMP
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.model import Case
from tests.one_test import one_test
from tests.rare import rare

CPU = torch.device("cpu")


def bert(variant: str, dtype: str = "float16") -> Case:
    return Case("bert_train", variant, dtype, (("B", 512),), (("model", "bert_toy"),), device="cpu")


RUNGS = [
    ("fused_norm_adam", "float16"),
    *(rare(name, "float16") for name in ("float32", "amp", "half")),
    rare("amp", "bfloat16"),
]


@pytest.mark.slow  # the next test has a step that overflows
@pytest.mark.parametrize(("variant", "dtype"), RUNGS)
def test_steps_that_overflow_are_skipped_alike_and_losses_fall(variant: str, dtype: str) -> None:
    found = trained(bert(variant, dtype), CPU, size=4, seed=1, steps=18)
    assert found.skipped == found.forced == (6, 12)
    assert len(found.losses) == 18
    assert sum(found.losses[-8:]) < sum(found.losses[:8]) - 8 * 0.3


def test_a_step_that_overflows_changes_no_weight(setup: Setup) -> None:
    trainer = Trainer(AMP, setup)
    seen: list[list[torch.Tensor]] = []
    recorder = _curves._Recorder(trainer, 3)  # steps 1 and 2 overflow
    for _ in range(3):
        recorder.add(trainer.loss_of_step)
        seen.append([weight.detach().clone() for weight in trainer.weights])
    first, second, third = seen
    assert recorder.skipped == [1, 2]
    assert all(one.equal(other) for one, other in zip(first, third, strict=True))
    recorder.forced = ()
    recorder.add(trainer.loss_of_step)
    assert not all(one.equal(other) for one, other in zip(second, trainer.weights, strict=True)), (
        "the scale is as before"
    )


def test_a_rung_that_skips_no_step_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_curves, "_OVERFLOWING", 2.0)
    found = trained(bert("amp"), CPU, size=4, seed=1, steps=6)
    assert (found.skipped, found.forced) == ((), (2, 4))


def test_data_is_the_same_for_all_seeds_and_weights_are_not(setup: Setup) -> None:
    one, other = _curves.batches(setup), _curves.batches(replace(setup, seed=2))
    assert len(one) == _curves.BATCHES
    assert all(a.equal(b) for batch, same in zip(one, other, strict=True) for a, b in zip(batch, same, strict=True))
    assert not one[0][0].equal(one[1][0]), "batches differ"
    weights = [Trainer(AMP, replace(setup, seed=seed)).weights[0] for seed in (1, 2)]
    assert not weights[0].equal(weights[1])


def test_data_fits_the_model(setup: Setup) -> None:
    given = Trainer(AMP, setup).batch
    for batch in _curves.batches(setup):
        assert [(one.shape, one.dtype) for one in batch] == [(one.shape, one.dtype) for one in given]


# ---- Which rung another one is compared with.

OURS = ["fused_norm_adam", "windows", "attention"]


@one_test(
    ("op", "variant", "among", "base"),
    [
        ("swin_train", "amp", ["float32", "tf32"], "tf32"),
        ("swin_train", "sdpa_half", ["sdpa", "sdpa_graph"], "sdpa"),
        ("swin_train", "compile", ["amp", "sdpa_half", "sdpa"], "sdpa"),
        ("swin_train", "fused_norm_adam", ["amp", "unscale", "sdpa", "compile"], "unscale"),
        ("swin_train", "graph", OURS, "attention"),
        ("swin_train", "half", [*OURS, "graph"], "attention"),
        ("swin_train", "graph", OURS[:1], "fused_norm_adam"),
        ("resnet50_train", "fused_norm", ["amp", "unscale", "fused_optimizer", "compile"], "fused_optimizer"),
        ("swin_train", "float32", ["tf32"], ""),
        ("prelu", "tuned", ["eager"], ""),
    ],
)
def test_a_rung_is_compared_with_the_one_that_it_goes_on_from(
    op: str, variant: str, among: Sequence[str], base: str
) -> None:
    assert _ladders.base(op, variant, among) == base
