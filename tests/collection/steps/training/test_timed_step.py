"""What the check of timed steps finds: steps that compute for another batch, or that train nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps.training._timed_step import DRAWS, OFF, loss_complaints, recheck
from tests.rare import rare

STEPS = 60  # after which the loss of the batch that was trained on is far below the loss of another one
FEW = 8


def for_an_old_batch(steps):
    """A step that was captured with the numbers of its first batch."""
    real, trainer = steps.step, steps.trainer
    kept = type(trainer.batch)(*(one.clone() for one in trainer.batch))

    def step():
        fresh, trainer.batch = trainer.batch, kept
        try:
            return real()
        finally:
            trainer.batch = fresh

    steps.step = step


def forward_only(steps):
    trainer = steps.trainer
    steps.step = lambda: trainer.loss(trainer.called, trainer.batch).detach()


def constant(steps):
    loss = torch.tensor(1.0)
    steps.step = lambda: loss


@pytest.mark.parametrize(
    ("change", "said"),
    [
        rare(for_an_old_batch, ["losses: a timed step on a new batch has a loss of"]),
        rare(forward_only, ["weights: a timed step changed none of them"]),
        (constant, ["losses: a timed step", "weights: a timed step changed none"]),
    ],
)
def test_what_is_found_of_a_timed_step(ready, change, said):
    with ready("bert_train", "float32") as session:
        (call,) = session.calls()
        for _ in range(STEPS if change is for_an_old_batch else FEW):
            call()
        if change is not for_an_old_batch:  # the check leaves a new batch
            assert not list(recheck(SimpleNamespace(), call.tensors, call))
        change(call.tensors.steps)
        found = list(recheck(SimpleNamespace(), call.tensors, call))
    assert len(found) == len(said), found
    assert all(complaint.startswith(beginning) for complaint, beginning in zip(found, said, strict=True))


def test_a_loss_that_varies_is_seldom_called_wrong():
    """The spread of four losses is often a fraction of what the losses vary: honest steps were wrong for that."""
    drawn = torch.Generator().manual_seed(1)

    def draw(count):
        return 1.0 + 0.5 * torch.randn(count, dtype=torch.float64, generator=drawn)

    told = [1 for got in draw(2000).tolist() for _ in loss_complaints(got, draw, OFF)]
    assert len(told) <= 4
    (complaint,) = loss_complaints(10.0, draw, OFF)
    assert complaint.startswith("losses: a timed step on a new batch has a loss of 10.0000; ")


def test_more_losses_are_drawn_only_before_a_complaint():
    counts = []

    def draw(count):
        counts.append(count)
        return torch.full((count,), 2.0)

    assert [*loss_complaints(2.0, draw, OFF)] == []
    assert counts == [DRAWS]
    assert len([*loss_complaints(float("nan"), draw, OFF)]) == 1
    assert len(counts) == 3
