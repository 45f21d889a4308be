"""Steps on a GPU: their gradients, what they report, what a replay changes, and that none waits where it shouldn't."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from harness import devices
from harness.collection.steps.training import _facts, _figures, _first_step, _settings
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._settings import forget_compiled, math_modes, side_stream
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.measure import measure
from harness.model import Case, Job, Timing

pytestmark = pytest.mark.gpu
LADDERS = {"resnet50_train": ("resnet_toy", RESNET), "bert_train": ("bert_toy", BERT), "swin_train": ("swin_toy", SWIN)}
MINUTES = [("resnet50_train", name) for name in ("compile_autotune", "compile_ours_autotune")]
"""They try kernels for every convolution, even of the smallest model; the other models' kernels are quickly tried."""
EVERY = [
    pytest.param(op, rung, id=f"{op}-{rung.name}")
    for op, (_, rungs) in LADDERS.items()
    for rung in rungs
    if (op, rung.name) not in MINUTES
]
EAGER = [one for one in EVERY if not one.values[1].compiled]
AS_GRAPHS = [
    pytest.param(op, replace(rung, graph=True), id=f"{op}-{rung.name}-as_graph")
    for op, (_, rungs) in LADDERS.items()
    for rung in rungs
    if not rung.compiled and not rung.graph
]
GRAPHS = [*(one for one in EVERY if one.values[1].graph), *AS_GRAPHS]
WHOLE = {"resnet50_train": "resnet50", "bert_train": "bert_base", "swin_train": "swin_tiny"}


@pytest.fixture(autouse=True)
def compile_anew() -> Iterator[None]:
    yield
    forget_compiled()


def setup_of(model, size=8, dtype=torch.float16, layout="nchw"):
    return Setup(model, size, 1, torch.device("cuda", 0), dtype, layout)


def trainer_of(op, rung, size=8):
    return Trainer(rung, setup_of(LADDERS[op][0], size))


@pytest.mark.parametrize(("op", "rung"), [*EVERY, *AS_GRAPHS])
def test_the_first_step_of_a_small_model_is_right(op, rung):
    """Compiled rungs are compiled here, which cases leave out."""
    assert not _first_step.complaints(rung, setup_of(LADDERS[op][0]))


@pytest.mark.parametrize(("op", "rung"), EAGER)
def test_the_first_step_is_right_in_bfloat16_and_nhwc(op, rung):
    layout = "nhwc" if op == "resnet50_train" else "nchw"
    assert not _first_step.complaints(rung, setup_of(LADDERS[op][0], dtype=torch.bfloat16, layout=layout))


@pytest.mark.parametrize(("op", "rung"), EAGER)
def test_the_first_step_of_a_whole_model_is_right(op, rung):
    assert not _first_step.complaints(rung, setup_of(WHOLE[op]))


CLIPPED = [
    one
    for one in (*EAGER, *AS_GRAPHS)
    if one.values[0] == "bert_train" and not (one.values[1].adam and one.values[1].half == "pure")
]


@pytest.mark.parametrize(("op", "rung"), CLIPPED)
def test_the_first_step_is_right_with_clipped_gradients(op, rung):
    assert not _first_step.complaints(rung, replace(setup_of(LADDERS[op][0]), clip=0.05))


@pytest.mark.parametrize(("op", "rung"), [one for one in EAGER if one.values[1].role == "ours"])
def test_a_weight_without_a_gradient_is_found(op, rung, monkeypatch):
    real = Trainer.__init__

    def cut(trainer, *arguments):
        real(trainer, *arguments)
        trainer.weights[0].register_hook(torch.zeros_like)

    monkeypatch.setattr(Trainer, "__init__", cut)
    assert _first_step.complaints(rung, setup_of(LADDERS[op][0]))


def facts_of(catalogue, variant, size=8):
    case = Case("swin_train", variant, "float16", (("B", size),), (("model", "swin_toy"), ("step", "eager")))
    timing = Timing(precision=0.5, max_time=0.1)
    found = measure(Job(case, timing), catalogue["swin_train"], devices.kinds()["cuda"])
    assert (found.status, found.timer) == ("ok", "steady"), found.error
    assert not [one for one in found.warnings if one.code == "not-closed"], found.warnings
    return dict(found.facts)


@pytest.mark.parametrize("variant", ["amp", "sdpa_graph", "attention", "compile_ours"])
def test_a_measurement_has_memory_energy_and_a_busy_share(variant, catalogue):
    facts = facts_of(catalogue, variant)
    weights = sum(one.numel() for one in trainer_of("swin_train", SWIN[0]).weights)
    assert 4 * 4 * weights < facts[_figures.PEAK_MEMORY] < 2**32  # weights, gradients and two moments at least
    assert facts[_figures.ENERGY] > 0
    assert 0 < facts[_facts.BUSY] <= 1


@pytest.mark.alone
def test_a_graph_keeps_the_gpu_busier_than_the_host_does(catalogue):
    assert facts_of(catalogue, "attention")[_facts.BUSY] < facts_of(catalogue, "graph")[_facts.BUSY]


def test_peak_memory_does_not_depend_on_the_cases_before(catalogue):
    found = [facts_of(catalogue, variant, 32)[_figures.PEAK_MEMORY] for variant in ("amp", "graph", "attention", "amp")]
    assert found[0] == pytest.approx(found[-1], rel=0.01)


def peak_of(op, rung, size):
    """Peak memory of a few eager steps of a whole model."""
    found = []
    ctx = SimpleNamespace(device=torch.device("cuda", 0), report=lambda _, value: found.append(value))
    before = _facts.allocated(ctx)
    with math_modes(rung.tf32):
        trainer = Trainer(rung, setup_of(WHOLE[op], size))
        for _ in range(_settings.EAGER):
            trainer.loss_of_step()
        _facts.with_memory(ctx, trainer.loss_of_step, before)
    return found[0]


@pytest.mark.parametrize("op", LADDERS)
def test_our_operators_take_no_more_memory_than_torch_s(op):
    """Neither in mixed precision nor in pure halves. Tables and the bits of ReLUs take a little."""
    eager = [rung for rung in LADDERS[op][1] if not rung.graph and not rung.compiled]
    for half in ("mixed", "pure"):
        theirs = next(rung for rung in eager if rung.role == "baseline" and rung.half == half)
        ours = next(rung for rung in reversed(eager) if rung.role == "ours" and rung.half == half)
        assert peak_of(op, ours, 32) <= 1.05 * peak_of(op, theirs, 32), half


def replay_of(trainer):
    """A graph of the step, after the first ones."""
    with side_stream():
        for _ in range(_settings.EAGER):
            trainer.loss_of_step()
    return trainer.as_graph()


@pytest.mark.parametrize(("op", "rung"), GRAPHS)
def test_each_replay_is_a_step_with_random_numbers_of_its_own(op, rung):
    with math_modes(tf32=True):
        trainer = trainer_of(op, rung)
        replay = replay_of(trainer)
        found, weights = [], []
        for _ in range(20):
            found.append(replay().item())
            weights.append(trainer.masters[0].detach().clone())
    assert len(set(found)) == len(found)
    assert not any(one.equal(other) for one, other in pairwise(weights))
    assert found[-1] < found[0]


@pytest.mark.parametrize(("op", "rung"), [one for one in EVERY if one.values[1].fused or one.values[1].adam])
def test_no_step_waits_for_the_device(op, rung):
    """Torch's fused optimizers and ours skip a step on the device; other optimizers ask the host about infinities."""
    clip = 1.0 if (op, rung) in [one.values for one in CLIPPED] else None
    with math_modes(tf32=True):
        trainer = Trainer(rung, replace(setup_of(LADDERS[op][0]), clip=clip))
        for _ in range(_settings.EAGER):
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
    monkeypatch.setattr("harness.collection.steps.training._trainer.SCALE", 2.0**60)
    trainer = trainer_of(op, rung)
    before = [one.detach().clone() for one in trainer.weights]
    trainer.loss_of_step()
    assert all(one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
    assert trainer.scaler.get_scale() == 2.0**59


@pytest.mark.parametrize(("op", "rung"), GRAPHS)
def test_a_replay_that_overflows_is_skipped(op, rung):
    """By the flag on the device, with torch's scaler and with ours; replays after it go on."""
    with math_modes(tf32=True):
        trainer = trainer_of(op, rung)
        replay = replay_of(trainer)
        replay()
        before = [one.detach().clone() for one in trainer.weights]
        if not trainer.scaler.is_enabled():
            pytest.skip("float32 has no scaled loss")
        trainer.scaler._scale.fill_(2.0**60)
        replay()
        assert all(one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
        assert trainer.scaler.get_scale() == 2.0**59
        trainer.scaler._scale.fill_(1024.0)
        assert replay().isfinite()
        changed = sum(not one.equal(other) for one, other in zip(before, trainer.weights, strict=True))
    assert changed > 0.9 * len(before)
