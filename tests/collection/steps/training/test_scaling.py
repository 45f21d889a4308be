"""Steps on several ranks: what is refused and noticed. test_many_ranks.py trains with gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.steps.training import _scaling
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._ranks import WAYS, FlatMean, RankTrainer, Way
from harness.collection.steps.training._rungs import FLOAT32, Rung
from harness.collection.steps.training._trainer import SCALE, Setup
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue
from harness.processes.supervisor import Workers
from harness.ranks import Group

TIMING = Timing(precision=0.5, max_time=0.02, timeout=100.0)
MODELS = {"resnet50_scaling": "resnet_toy", "bert_scaling": "bert_toy", "swin_scaling": "swin_toy"}
RUNGS = ("tf32", "amp", "fused_norm_adam", "windows", "attention", "compile_attention")
"""The rungs that swin_scaling has beside the ways."""


def case(op: str, variant: str, world: int = 2, **fields: Any) -> Case:
    own = {"resnet50_scaling": (("layout", "nhwc"),), "bert_scaling": (("clip", "none"),)}.get(op, ())
    chosen = (("model", MODELS[op]), ("step", "eager"), *own)
    return replace(Case(op, variant, "float16", (("B", 8),), chosen, world, "cpu"), **fields)


def stepping(asked: Case, step: str) -> Case:
    """The case with its step run in another way."""
    return replace(asked, choices=tuple((name, step if name == "step" else value) for name, value in asked.choices))


def test_alone_only_replicas_are_a_case(catalogue: Catalogue) -> None:
    reasons = {name: v.unsupported for name, v in catalogue["resnet50_scaling"].variants.items()}
    able = {name for name, why in reasons.items() if not (why and why(case("resnet50_scaling", name, world=1)))}
    assert able == {"replicas"}


@pytest.mark.parametrize(
    ("step", "reason"), [("graph", "a CPU has no CUDA graphs"), ("autotune", "a CPU has no kernels to try")]
)
def test_a_cpu_has_no_such_step(catalogue: Catalogue, step: str, reason: str) -> None:
    asked = case("bert_scaling", "replicas", choices=(("model", "bert_toy"), ("step", step)))
    for name in ("replicas", "no_sync", "after", "ddp"):
        refused = catalogue["bert_scaling"].variants[name].unsupported
        assert refused
        assert str(refused(asked)).startswith(f"{reason}: give step: eager")
        assert refused(replace(asked, device="cuda")) is None


@pytest.mark.parametrize("model", ["bert_toy", "resnet_toy"])
def test_a_rehearsal_leaves_no_trace(model: str) -> None:
    """Losses of the steps after it equal the losses of a trainer that didn't rehearse, to the last bit."""
    setup = Setup(model, 4, 5, torch.device("cpu"), torch.float64, shard=1)
    found: list[list[float]] = []
    for rehearses in (False, True):
        trainer = RankTrainer(FLOAT32, setup, wrapped=False, mean=None)
        if rehearses:
            trainer.rehearse()
        found.append([trainer.loss_of_step().item() for _ in range(4)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 4


@pytest.mark.parametrize("world", [1, 8])
def test_a_rung_has_its_own_step_on_any_number_of_devices(catalogue: Catalogue, world: int) -> None:
    op = catalogue["swin_scaling"]
    assert op.variants.keys() == {*RUNGS, "replicas", "no_sync", "after", "ddp"}
    for name in RUNGS:
        refused = op.variants[name].unsupported
        assert refused
        asked = case("swin_scaling", name, world)
        assert refused(asked) is None
        compiled = replace(asked, choices=(("model", "swin_toy"), ("step", "compile")))
        assert "give step: eager" in str(refused(compiled))


def test_a_rung_is_trained_as_its_ladder_says(monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue) -> None:
    """The trainer is given the rung and the way: not the step that the ways have, and not a way without a mean."""
    made: list[tuple[Way, Rung, int]] = []

    def trainer_of(way: Way, rung: Rung, _setup: object, world: int) -> None:
        made.append((way, rung, world))
        raise LookupError

    monkeypatch.setattr(_scaling, "trainer_of", trainer_of)
    monkeypatch.setattr(_scaling, "reference_losses", lambda *_: (2.0, 1.0))
    deferred: list[object] = []
    for name in RUNGS:
        ctx: Any = SimpleNamespace(
            s=SimpleNamespace(step="eager"),
            device=torch.device("cpu"),
            group=SimpleNamespace(rank=0, size=8),
            case=case("swin_scaling", name),
            defer=deferred.append,
        )
        monkeypatch.setattr(_scaling, "setup_of", lambda _: None)
        monkeypatch.setattr("harness.collection.steps.training._facts.allocated", lambda _: 0)
        with pytest.raises(LookupError):
            catalogue["swin_scaling"].variants[name].prepare(ctx)
    wanted = [rung_of("swin_train", name) for name in RUNGS]
    assert [(way.name, rung, world) for way, rung, world in made] == [("ddp", rung, 8) for rung in wanted]
    # Each has its settings of the process undone; a compiled one what torch.compile keeps, too.
    assert len(deferred) == len(RUNGS) + 1


class Pair(Group):
    """A group whose other rank says what a test wants."""

    def __init__(self, other: object) -> None:
        super().__init__(0, 2, lambda value, _: [value, (None, other)])


@pytest.mark.parametrize(
    ("variant", "other", "losses", "off", "wrong"),
    [
        ("ddp", 7.0, [2.0, 1.0], 0.0, ""),
        ("ddp", 7.5, [2.0, 1.0], 0.0, "weights: they differ between ranks"),
        ("replicas", 7.5, [2.0, 1.0], 0.0, ""),
        ("after", 7.0, [2.0, 1.9], 0.0, "losses: the loss of step 2 is off by 0.9"),
        ("after", 7.0, [2.0, 1.0], 1.0, "gradients: their mean over ranks is off by 100.0% of its norm"),
    ],
)
def test_ranks_that_drift_apart_or_lose_their_way_are_wrong(
    monkeypatch: pytest.MonkeyPatch, variant: str, other: float, losses: list[float], off: float, wrong: str
) -> None:
    monkeypatch.setattr(_scaling, "reference_losses", lambda *_: (2.0, 1.0))
    ctx: Any = SimpleNamespace(group=Pair(other), case=case("resnet50_scaling", variant))
    told = {"losses": losses, "weights": 7.0, "off": off}
    found = [*_scaling.check(ctx, SimpleNamespace(**{name: torch.tensor(value) for name, value in told.items()}))]
    assert [text[: len(wrong)] for text in found] == ([wrong] if wrong else [])


def test_gradients_become_views_of_one_buffer_in_the_layout_of_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.collection.steps.training._ranks.process_group", lambda _backend: None)
    half = {torch.distributed.ReduceOp.AVG: 0.5}  # the other rank has none
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat, how, group: flat.mul_(half[how]))
    weights = [torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.randn(5)]
    mean = FlatMean(torch.device("cpu"))
    for _ in range(2):  # the buffer is used again
        gradients = [torch.randn_like(weight) for weight in weights]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        mean(weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            assert weight.grad is not None
            assert torch.equal(weight.grad, gradient / 2)
            assert weight.grad.stride() == weight.stride()
    assert len({weight.grad.untyped_storage().data_ptr() for weight in weights if weight.grad is not None}) == 1


@pytest.mark.parametrize("enabled", [True, False])
def test_steps_that_a_rank_s_overflow_has_all_skip_are_told(enabled: bool) -> None:
    later: list[Callable[[], None]] = []
    told: dict[str, float] = {}
    ctx: Any = SimpleNamespace(
        device=torch.device("cpu"), group=Pair(None), afterwards=later.append, report=told.__setitem__
    )
    scaler = SimpleNamespace(is_enabled=lambda: enabled, get_scale=lambda: SCALE / 4)
    trainer: Any = SimpleNamespace(scaler=scaler)
    _scaling.report_later(ctx, WAYS[-1], trainer, lambda: None)
    for call in later:
        call()
    assert told == ({"skipped_steps": 2} if enabled else {})


@pytest.mark.gpu
@pytest.mark.parametrize("op", MODELS)
def test_one_gpu_trains_by_a_graph(catalogue: Catalogue, op: str) -> None:
    """The check holds all of its losses to the reference's, and each of these steps is a replay."""
    from harness import devices

    job = Job(stepping(case(op, "replicas", 1, device="cuda"), "graph"), TIMING)
    found = measure(job, catalogue[op], devices.kinds()["cuda"])
    assert (found.status, found.timer) == ("ok", "steady"), found.error


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("step", ["eager", "graph"])
@pytest.mark.parametrize("op", MODELS)
def test_gpus_train_together(op: str, step: str) -> None:
    from harness import devices

    if (devices.kinds()["cuda"].count or 0) < 2:
        pytest.skip("needs 2 GPUs")
    rungs = RUNGS if op == "swin_scaling" and step == "eager" else ()
    with Workers("cuda") as workers:
        for variant in ("replicas", "no_sync", "after", "ddp", *rungs):
            found = workers.measure(Job(stepping(case(op, variant, device="cuda"), step), TIMING))
            assert (found.status, found.timer) == ("ok", "steady"), found.error
            told = {name for name, _ in found.facts} & {"hidden_by_trace", "communication"}
            assert len(told) == (0 if variant in ("replicas", "no_sync") else 2)
