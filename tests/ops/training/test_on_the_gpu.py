"""Steps on a GPU: what they report, what a replay changes, and that no step waits for the device where none should."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from harness import devices, metrics
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops.training import _steps
from harness.ops.training._rungs import BERT, RESNET, SWIN
from harness.ops.training._settings import captured, math_modes, side_stream
from harness.ops.training._trainer import Setup, Trainer

pytestmark = pytest.mark.gpu
LADDERS = {"resnet50_train": ("resnet_toy", RESNET), "bert_train": ("bert_toy", BERT), "swin_train": ("swin_toy", SWIN)}
EVERY = [
    pytest.param(op, rung, id=f"{op}-{rung.name}")
    for op, (_, rungs) in LADDERS.items()
    for rung in rungs
    if not rung.compiled
]


def trainer_of(op, rung, size=8):
    return Trainer(rung, Setup(LADDERS[op][0], size, 1, torch.device("cuda", 0), torch.float16))


@pytest.mark.parametrize("variant", ["amp", "sdpa_graph", "attention"])
def test_a_measurement_has_memory_and_energy(variant, catalogue):
    case = Case("swin_train", variant, "float16", (("B", 8),), (("model", "swin_toy"),))
    found = measure(Job(case, Timing(precision=0.5, max_time=0.1)), catalogue["swin_train"], devices.kinds()["cuda"])
    assert (found.status, found.timer) == ("ok", "steady"), found.error
    facts = dict(found.facts)
    weights = sum(one.numel() for one in trainer_of("swin_train", SWIN[0]).weights)
    assert 4 * 4 * weights < facts[metrics.PEAK_MEMORY] < 2**32  # weights, gradients and two moments at least
    assert facts[metrics.ENERGY] > 0


@pytest.mark.parametrize(("op", "rung"), [one for one in EVERY if one.values[1].graph])
def test_each_replay_is_a_step_with_random_numbers_of_its_own(op, rung):
    with math_modes(tf32=True):
        trainer = trainer_of(op, rung)
        with side_stream():
            for _ in range(_steps.EAGER):
                trainer.loss_of_step()
        replay = captured(trainer.loss_of_step)
        found, weights = [], []
        for _ in range(20):
            found.append(replay().item())
            weights.append(trainer.masters[0].detach().clone())
    assert len(set(found)) == len(found)
    assert not any(one.equal(other) for one, other in pairwise(weights))
    assert found[-1] < found[0]


@pytest.mark.parametrize(("op", "rung"), [one for one in EVERY if one.values[1].fused or one.values[1].adam])
def test_no_step_waits_for_the_device(op, rung):
    """Torch's fused optimizers and ours skip a step on the device; others ask the host whether gradients are finite."""
    with math_modes(tf32=True):
        trainer = trainer_of(op, rung)
        for _ in range(_steps.EAGER):
            trainer.loss_of_step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.loss_of_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("op", "rung"), EVERY)
def test_a_step_that_overflows_is_skipped(op, rung, monkeypatch):
    if rung.half == "none":
        pytest.skip("float32 has no scaled loss")
    monkeypatch.setattr("harness.ops.training._trainer.SCALE", 2.0**60)
    trainer = trainer_of(op, rung)
    before = [one.detach().clone() for one in trainer.weights]
    trainer.loss_of_step()
    assert all(one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
    assert trainer.scaler.get_scale() == 2.0**59
