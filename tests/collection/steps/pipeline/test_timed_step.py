"""What the check of timed steps finds of a pipeline: batches that aren't the next ones, steps that use others."""

from __future__ import annotations

import pytest
import torch

from harness.collection.steps.pipeline import _facts, _fed
from harness.devices.cpu import Cpu
from harness.session import Session
from tests.collection.steps.pipeline.test_image_pipeline import OP, case
from tests.rare import rare


@pytest.fixture(autouse=True)
def small_models(optimizers_loaded, one_thread, short_timing, monkeypatch):
    """As in test_image_pipeline.py."""
    monkeypatch.setattr(_facts, "FEWEST", 1)
    monkeypatch.setitem(_facts.SHORTEST, "cpu", 0.0)


def same_batch(fed):
    item = fed.pipeline.take()
    fed.pipeline.done()
    fed.pipeline.take = lambda: item


def old_images(fed):
    fed._parts.step._scale = lambda images: None


def nothing_trained(fed):
    loss = torch.tensor(50.0)
    fed._parts.step._step = lambda: loss


@pytest.mark.parametrize(
    ("change", "said"),
    [
        rare(same_batch, ["batches: a timed step had batch"]),
        (old_images, ["images: a timed step trained with others than came"]),
        rare(nothing_trained, ["losses: a timed step on a new batch", "weights: a timed step changed none of them"]),
    ],
)
def test_what_is_found_of_a_timed_step(change, said):
    with Session(case("cached"), OP, Cpu()) as session:
        session.prepare()
        assert session.check() is None
        [call] = session.calls()
        for _ in range(2):
            call()
        assert not [*_fed.recheck(session._ctx, call.tensors, call)]
        change(session._prepared.launch)
        if change is same_batch:
            call()
        found = [*_fed.recheck(session._ctx, call.tensors, call)]
    assert len(found) == len(said), found
    assert all(complaint.startswith(begin) for complaint, begin in zip(found, said, strict=True))
