"""Steps on several ranks: what is refused and noticed. test_many_ranks.py trains with gloo."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.models import MODELS as ALL_MODELS
from harness.collection.steps.training import _facts, _scaling
from harness.collection.steps.training._figures import TOKENS
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._ranks import LABELS, WAYS, RankTrainer, Way
from harness.collection.steps.training._rungs import FLOAT32, Rung
from harness.collection.steps.training._trainer import SCALE, Setup
from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue
from harness.processes.supervisor import Workers
from harness.ranks import Group
from harness.session import Session
from tests.rare import rare

TIMING = Timing(precision=0.5, max_time=0.02, timeout=100.0)
MODELS = {"resnet50_scaling": "resnet_toy", "bert_scaling": "bert_toy", "swin_scaling": "swin_toy"}
WAYS_OF_ALL = ("replicas", "no_sync", "after", "ddp", "ddp_bfloat16", "buckets", "copies")
LLAMA_WAYS = ("replicas", "no_sync", "after", "ddp", "fsdp", "fsdp_keep", "fsdp_ours")
LLAMA_RUNGS = ("chunked_half", "fused_loss", "compile_ours")
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
    for name in WAYS_OF_ALL:
        refused = catalogue["bert_scaling"].variants[name].unsupported
        assert refused
        assert str(refused(asked)).startswith(f"{reason}: give step: eager")
        on_gpus = refused(replace(asked, device="cuda"))
        if name in {"buckets", "copies"} and step == "autotune":
            assert str(on_gpus).startswith("torch.compile gives all gradients at once")
        else:
            assert on_gpus is None


@pytest.mark.parametrize("model", [rare("bert_toy"), "resnet_toy"])
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


def test_a_rung_s_ceiling_is_of_the_type_of_its_products(catalogue: Catalogue) -> None:
    op = catalogue["swin_scaling"]
    sizes = {"model": "swin_toy", "B": 3, "world": 2}
    found = {name: op.work_done_by(op.variants[name], sizes, "float16").flops[0][0] for name in ("tf32", "amp", "ddp")}
    assert found == {"tf32": "tf32", "amp": "float16", "ddp": "float16"}


@pytest.mark.parametrize("world", [1, 8])
def test_a_rung_has_its_own_step_on_any_number_of_devices(catalogue: Catalogue, world: int) -> None:
    op = catalogue["swin_scaling"]
    assert op.variants.keys() == {*RUNGS, *WAYS_OF_ALL}
    for name in RUNGS:
        refused = op.variants[name].unsupported
        assert refused
        asked = case("swin_scaling", name, world)
        assert refused(asked) is None
        assert "give step: eager, or graph" in str(refused(stepping(asked, "compile")))
        assert refused(stepping(asked, "graph")) == "a CPU has no CUDA graphs: give step: eager"
        assert refused(stepping(replace(asked, device="cuda"), "graph")) is None


def test_a_llama_trains_in_more_ways(catalogue: Catalogue) -> None:
    """Weights in parts need several devices; our kernels need a GPU. A rung is never compiled by the case."""
    op = catalogue["llama_scaling"]
    assert [*op.variants] == [*LLAMA_WAYS, *LLAMA_RUNGS]
    asked = Case("llama_scaling", "fsdp", "bfloat16", (("B", 8),), (("model", "llama_toy"), ("step", "eager")), 2)
    for name in ("fsdp", "fsdp_keep", "fsdp_ours"):
        refused = op.variants[name].unsupported
        assert refused
        assert refused(asked) is None
        assert refused(stepping(asked, "graph")) is None
        assert "give world: 2" in str(refused(replace(asked, world=1)))
    ours = {name for name, variant in op.variants.items() if variant.role == "ours"}
    assert ours == {name for name, variant in op.variants.items() if "cpu" not in variant.devices}
    assert ours == {"fsdp_ours", "fused_loss", "compile_ours"}


def test_a_rung_is_trained_as_its_ladder_says(monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue) -> None:
    """The trainer is given the rung and the way: not the step that the ways have, and not a way without a mean."""
    made: list[tuple[Way, Rung, int]] = []

    def trainer_of(way: Way, rung: Rung, _setup: object, world: int) -> None:
        made.append((way, rung, world))
        raise LookupError

    def told(what: object, gives: Any = None) -> Any:
        def tell(*_: object) -> Any:
            order.append(what)
            return gives

        return tell

    @contextmanager
    def math_modes(tf32: bool) -> Iterator[None]:
        modes.append(tf32)
        yield

    order: list[object] = []
    modes: list[bool] = []
    monkeypatch.setattr(_scaling, "trainer_of", trainer_of)
    monkeypatch.setattr(_scaling, "math_modes", math_modes)
    monkeypatch.setattr(_scaling, "reference_losses", told("reference", (2.0, 1.0)))
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
        monkeypatch.setattr("harness.collection.steps.training._facts.allocated", told("memory", 0))
        with pytest.raises(LookupError):
            catalogue["swin_scaling"].variants[name].prepare(ctx)
    wanted = [rung_of("swin_train", name) for name in RUNGS]
    assert [(way.name, rung, world) for way, rung, world in made] == [("ddp", rung, 8) for rung in wanted]
    assert modes == [rung.tf32 for rung in wanted]
    # The reference's losses take memory that isn't the trainer's.
    assert order == ["reference", "memory"] * len(RUNGS)
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
        ("after", 7.0, [2.0, 0.1], 0.0, "losses: the loss of step 2 is off by 0.9"),
        ("after", 7.0, [1.55, 1.45], 0.0, ""),
        ("after", 7.0, [1.45, 1.45], 0.0, "losses: the loss of step 1 is off by 0.55, allowed are 0.5;"),
        ("after", 7.0, [2.0, math.nan], 0.0, "losses: the loss of step 2 is off by nan"),
        ("after", 7.0, [2.0, 1.0], 1.0, "gradients: their mean over ranks is off by 100.0% of its norm"),
        ("after", 7.0, [2.0, 1.0], 0.09, ""),
        (
            "after",
            7.0,
            [2.0, 1.0],
            0.11,
            "gradients: their mean over ranks is off by 11.0% of its norm, allowed are 10%",
        ),
        ("after", 7.0, [2.0, 1.0], math.nan, "gradients: their mean over ranks is off by nan"),
        ("ddp", 7 * (1 + 0.9e-9), [2.0, 1.0], 0.0, ""),
        ("ddp", 7 * (1 - 1.2e-9), [2.0, 1.0], 0.0, "weights: they differ between ranks after 10 steps"),
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


@pytest.mark.parametrize(("variant", "other", "wrong"), [("ddp", 7.0, 0), ("ddp", 7.5, 1), ("replicas", 7.5, 0)])
def test_ranks_that_drift_apart_in_timed_steps_are_wrong(
    monkeypatch: pytest.MonkeyPatch, variant: str, other: float, wrong: int
) -> None:
    """What is wrong with the rank's own step is told after all ranks have met."""
    monkeypatch.setattr("harness.collection.steps.training._timed_step.recheck", lambda *_: iter(["losses: no"]))
    ctx: Any = SimpleNamespace(group=Pair(other), case=case("bert_scaling", variant))
    t = SimpleNamespace(steps=SimpleNamespace(trainer=SimpleNamespace(weights=[torch.tensor(7.0)])))
    *apart, own = _scaling.recheck(ctx, t, lambda: None)
    assert own == "losses: no"
    expected = ["weights: they differ between ranks after the timed steps; their sums are [7.0, 7.5]"]
    assert apart == expected * wrong


@pytest.mark.slow  # test_timed_step.py has what is found of a timed step
@pytest.mark.usefixtures("optimizers_loaded")
@pytest.mark.parametrize("is_right", [rare(True), False])
def test_a_timed_step_is_held_to_a_batch_that_it_has_not_seen(catalogue: Catalogue, is_right: bool) -> None:
    """Labels are of few classes there, too."""
    alone = case("resnet50_scaling", "replicas", world=1)
    with Session(alone, catalogue["resnet50_scaling"], Cpu()) as session:
        session.prepare()
        assert session.check() is None
        [call] = session.rotation().calls
        call()
        trainer = call.tensors.steps.trainer
        if not is_right:
            trainer._backward = lambda: torch.tensor(9.0)
            trainer._update = lambda: None
        found = [*_scaling.recheck(session._ctx, call.tensors, call)]
    assert int(trainer.batch.labels.max()) < min(LABELS, trainer.setup.config.classes // 2)
    assert [text.partition(":")[0] for text in found] == ([] if is_right else ["losses", "weights"])


@pytest.mark.parametrize(("last", "is_told"), [(1.97, True), (1.9601, True), (1.9599, False), (2.1, True)])
def test_no_step_is_judged_by_losses_that_do_not_fall(
    monkeypatch: pytest.MonkeyPatch, last: float, is_told: bool
) -> None:
    """They fall from the first to the lowest, by more than 2% of the first."""
    monkeypatch.setattr(_scaling, "reference_losses", lambda *_: (2.0, last, 2.3))
    ctx: Any = SimpleNamespace(group=Pair(7.0), case=case("resnet50_scaling", "ddp"))
    told = {"losses": [2.0, last, 2.0], "weights": 7.0, "off": 0.0}
    found = [*_scaling.check(ctx, SimpleNamespace(**{name: torch.tensor(value) for name, value in told.items()}))]
    assert any("the reference's losses don't fall" in text for text in found) == is_told


@pytest.mark.parametrize(("world", "sent"), [(1, 0), (2, 2 / 2), (8, 2 * 7 / 8)])
def test_the_work_of_ranks(world: int, sent: float) -> None:
    """Operations are one rank's: a backward pass takes twice those of a forward pass. Items are all ranks'."""
    found = _scaling.work({"model": "bert_toy", "B": 3, "world": world}, 2, "sequences")
    config = ALL_MODELS["bert_toy"]
    assert found.flops == (("case", 9 * config.flops()),)
    assert found.sent == int(sent * 4 * config.parameters())
    assert (found.items, found.item) == (3 * world, "sequences")


@pytest.mark.parametrize(("graph", "rehearsed"), [("graph", 1), ("eager", 0)])
@pytest.mark.parametrize(("way", "world", "off"), [("ddp", 2, 0.25), ("ddp", 1, 0.0), ("no_sync", 2, 0.0)])
def test_the_mean_of_gradients_is_compared_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, graph: str, rehearsed: int, way: str, world: int, off: float
) -> None:
    rehearsals: list[object] = []
    trainer: Any = SimpleNamespace(error_of_mean=lambda: 0.25, rehearse=lambda: rehearsals.append(None))
    monkeypatch.setattr(_scaling, "trainer_of", lambda *_: trainer)
    monkeypatch.setattr(_scaling, "setup_of", lambda _: None)
    monkeypatch.setattr(_scaling, "capture_stream", nullcontext)
    ctx: Any = SimpleNamespace(s=SimpleNamespace(step=graph), group=SimpleNamespace(size=world))
    told = torch.zeros(())
    assert _scaling.trainer_as_asked(ctx, _scaling.way_of(way), FLOAT32, told) is trainer
    assert (float(told), len(rehearsals)) == (off, rehearsed)


@pytest.mark.parametrize("model", ["bert_toy", "resnet_toy"])
def test_only_the_first_steps_tell_their_losses(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """All but two of them are made while the case is prepared; a later step changes nothing of what is checked."""
    made = iter(range(1, 100))
    trainer = SimpleNamespace(
        weights=[torch.tensor([1.0, 2.0]), torch.tensor([4.0])],
        loss_of_step=lambda: torch.tensor(float(next(made))),
        scaler=SimpleNamespace(is_enabled=lambda: False),
        uncounted=5,
    )
    later: list[object] = []
    before: list[int] = []
    monkeypatch.setattr(_facts, "allocated", lambda _: 100)

    def with_memory(_: object, steps: Callable[[], None], bytes_before: int) -> None:
        before.append(bytes_before)
        steps()

    monkeypatch.setattr(_facts, "with_memory", with_memory)
    monkeypatch.setattr(_scaling, "trainer_as_asked", lambda _ctx, _way, _rung, off: off.fill_(0.25) and trainer)
    monkeypatch.setattr(_scaling, "report_later", lambda *given: later.append(given[2]))
    monkeypatch.setattr(_scaling, "reference_losses", lambda *_: (2.0, 1.0))
    told: dict[str, float] = {}
    ctx: Any = SimpleNamespace(
        s=SimpleNamespace(step="eager", model=model, B=3),
        device=torch.device("cpu"),
        group=SimpleNamespace(rank=0, size=2),
        defer=lambda _: None,
        report=told.__setitem__,
    )
    launch = _scaling.prepare(ctx, _scaling.way_of("no_sync"), FLOAT32)
    assert next(made) == 9
    assert before == [95]  # what torch's allocator doesn't count is the case's, too
    seen = SimpleNamespace(**_scaling.make(ctx))
    for _ in range(2):
        launch(seen)
    assert seen.losses.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    assert (float(seen.weights), float(seen.off), later) == (7, 0.25, [trainer])
    launch(seen)
    assert seen.losses.tolist()[-1] == 11
    assert told == ({TOKENS: 3 * 2 * ALL_MODELS["bert_toy"].tokens} if model == "bert_toy" else {})


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
@pytest.mark.alone
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
    rungs = RUNGS if op == "swin_scaling" else ()
    with Workers("cuda") as workers:
        for variant in (*WAYS_OF_ALL, *rungs):
            found = workers.measure(Job(stepping(case(op, variant, device="cuda"), step), TIMING))
            assert (found.status, found.timer) == ("ok", "steady"), found.error
            told = {name for name, _ in found.facts} & {"hidden_by_trace", "communication"}
            assert len(told) == (0 if variant in ("replicas", "no_sync") else 2)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("step", ["eager", "compile", "graph"])
@pytest.mark.parametrize("parts", [1, 2])
def test_gpus_train_a_llama_together(step: str, parts: int) -> None:
    from harness import devices

    if (devices.kinds()["cuda"].count or 0) < 2:
        pytest.skip("needs 2 GPUs")
    chosen = (("model", "llama_toy"), ("step", step), ("clip", "none"), ("micro_batches", parts))
    with Workers("cuda") as workers:
        for variant in (*LLAMA_WAYS, *(LLAMA_RUNGS if step != "compile" else ())):
            asked = Case("llama_scaling", variant, "bfloat16", (("B", 8),), chosen, 2, "cuda")
            found = workers.measure(Job(asked, TIMING))
            assert (found.status, found.timer) == ("ok", "steady"), found.error
            told = {name for name, _ in found.facts} & {"hidden_by_trace", "communication"}
            assert len(told) == (0 if variant in ("replicas", "no_sync") else 2)
