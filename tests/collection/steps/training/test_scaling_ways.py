"""Which trainer a rank has in each way of training together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.steps.training import _scaling
from harness.collection.steps.training._means import BucketMean, FlatMean, gathered_mean
from harness.collection.steps.training._ranks import RankTrainer
from harness.collection.steps.training._rungs import FLOAT32
from harness.collection.steps.training._trainer import Setup
from tests.one_test import one_test


@pytest.mark.parametrize(
    ("name", "world", "wrapped", "mean", "asked"),
    [
        ("replicas", 2, False, None, []),
        ("no_sync", 2, True, None, ["never"]),
        ("after", 2, False, FlatMean, []),
        ("ddp", 2, True, None, []),
        ("ddp_bfloat16", 2, True, None, ["halves"]),
        ("buckets", 2, False, BucketMean, []),
        ("copies", 2, False, BucketMean, []),
        ("after", 1, False, None, []),
        ("ddp", 1, False, None, []),
        ("ddp_bfloat16", 1, False, None, []),
        ("buckets", 1, False, None, []),
        ("copies", 1, False, None, []),
    ],
)
def test_gradients_are_averaged_by_torch_or_by_us_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, name: str, world: int, wrapped: bool, mean: type | None, asked: list[str]
) -> None:
    told: list[str] = []

    def trainer(*_: object, **given: Any) -> Any:
        asks = {"never_sync": lambda: told.append("never"), "send_halves": lambda: told.append("halves")}
        return SimpleNamespace(**given, **asks)

    monkeypatch.setattr(_scaling, "RankTrainer", trainer)
    setup: Any = SimpleNamespace(device=torch.device("cpu"))
    monkeypatch.setattr("harness.collection.steps.training._means.process_group", lambda _backend: None)
    made: Any = _scaling.trainer_of(_scaling.way_of(name), FLOAT32, setup, world)
    assert (made.wrapped, made.mean if mean is None else type(made.mean), told) == (wrapped, mean, asked)


def test_gradients_are_sent_in_halves_by_torch_s_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    given: list[Any] = []
    monkeypatch.setattr("harness.collection.steps.training._ranks.process_group", lambda backend: f"of {backend}")
    monkeypatch.setattr(default_hooks, "bf16_compress_hook", lambda group, bucket: given.append((group, bucket)))
    trainer: Any = RankTrainer.__new__(RankTrainer)
    trainer.setup = SimpleNamespace(device=torch.device("cpu"))
    trainer._wrapped = SimpleNamespace(register_comm_hook=lambda state, hook: hook(state, "a bucket"))
    trainer.send_halves()
    assert given == [("of gloo", "a bucket")]


@pytest.mark.parametrize("seed", [5, 3_000_000_000, 2**32 - 1])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_all_ranks_begin_with_the_same_weights_and_have_data_of_their_own(
    monkeypatch: pytest.MonkeyPatch, seed: int, rank: int
) -> None:
    """The inputs' seed is different on each rank."""
    monkeypatch.setattr(_scaling, "asked_of", lambda _: {})
    ctx: Any = SimpleNamespace(
        s=SimpleNamespace(model="bert_toy", B=3),
        group=SimpleNamespace(rank=rank),
        generator=torch.Generator().manual_seed(seed + rank),
        device=torch.device("cpu"),
        dtype=torch.float16,
        case=None,
    )
    found = _scaling.setup_of(ctx)
    assert (found.seed, found.shard) == (seed, rank)


@pytest.mark.parametrize(
    ("device", "world", "name", "told"),
    [
        ("cuda", 2, "ddp", ["a step"]),
        ("cuda", 2, "ddp_bfloat16", ["a step"]),
        ("cuda", 2, "buckets", ["a step"]),
        ("cuda", 2, "copies", ["a step"]),
        ("cuda", 2, "after", ["a step"]),
        ("cuda", 2, "no_sync", []),
        ("cuda", 1, "ddp", []),
        ("cpu", 2, "ddp", []),
    ],
)
def test_what_ranks_send_is_traced_afterwards_on_gpus(
    monkeypatch: pytest.MonkeyPatch, device: str, world: int, name: str, told: list[str]
) -> None:
    traced: list[object] = []
    later: list[Any] = []
    monkeypatch.setattr(_scaling, "report_trace", lambda _, step, copied: traced.append((step, copied)))
    ctx: Any = SimpleNamespace(
        device=SimpleNamespace(type=device), group=SimpleNamespace(size=world), afterwards=later.append
    )
    trainer: Any = SimpleNamespace(scaler=SimpleNamespace(is_enabled=lambda: False), copied={128})
    step: Any = "a step"
    _scaling.report_later(ctx, _scaling.way_of(name), trainer, step)
    assert traced == []
    for call in later:
        call()
    assert traced == [(step, {128}) for step in told]


@one_test(("sums", "apart"), [([7.0], 0), ([7.0] * 3, 0), ([7.0, 7.0, 7.1], 1), ([7.1, 7.0, 7.0], 1)])
def test_weights_of_all_ranks_are_the_same_also_where_there_is_one(sums: list[float], apart: int) -> None:
    assert len(list(_scaling._apart(_scaling.way_of("ddp"), sums, "10 steps"))) == apart
    assert not list(_scaling._apart(_scaling.way_of("replicas"), sums, "10 steps"))


SETUP = Setup("bert_toy", 4, 5, torch.device("cpu"), torch.float16, layout="nhwc", shard=1)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float64), ("cuda", torch.float32)])
@pytest.mark.parametrize(
    ("name", "world", "synced"),
    [("ddp", 2, True), ("ddp", 1, False), ("after", 2, True), ("no_sync", 2, False), ("replicas", 2, False)],
)
def test_the_reference_trains_in_plain_precision_with_the_ranks_that_the_way_averages_over(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype, name: str, world: int, synced: bool
) -> None:
    asked: list[tuple[Setup, bool]] = []
    monkeypatch.setattr(_scaling, "setup_of", lambda _: SETUP)

    def losses(*given: Any) -> tuple[float, ...]:
        asked.append(given)
        return (1.0,)

    monkeypatch.setattr(_scaling, "_reference_losses", losses)
    ctx: Any = SimpleNamespace(device=SimpleNamespace(type=device), group=SimpleNamespace(size=world))
    assert _scaling.reference_losses(ctx, _scaling.way_of(name)) == (1.0,)
    assert asked == [(replace(SETUP, dtype=dtype, layout="nchw"), synced)]


@pytest.mark.parametrize("synced", [True, False])
def test_the_reference_s_products_are_exact_and_its_gradients_are_averaged_by_each_rank(
    monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    told: list[Any] = []

    @contextmanager
    def reference_modes() -> Iterator[None]:
        told.append("begun")
        yield
        told.append("over")

    def trainer(rung: object, setup: Setup, **given: Any) -> Any:
        told.append((rung, setup, given))
        losses = iter(range(100))
        return SimpleNamespace(model="a model", loss_of_step=lambda: torch.tensor(float(next(losses))))

    monkeypatch.setattr(_scaling, "reference_modes", reference_modes)
    monkeypatch.setattr(_scaling, "RankTrainer", trainer)
    monkeypatch.setattr(_scaling, "keep_little", told.append)
    assert _scaling._reference_losses.__wrapped__(SETUP, synced) == tuple(range(10))
    given = {"wrapped": False, "mean": gathered_mean if synced else None}
    assert told == ["begun", (FLOAT32, SETUP, given), "a model", "over"]


def test_losses_are_told_with_three_decimals() -> None:
    assert _scaling._written([2.0, 1.23456]) == "2.000 1.235"


def test_a_batch_that_cannot_be_cut_is_refused_in_all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scaling, "cant_cut", lambda _: "3 can't be cut into 2")
    asked: Any = SimpleNamespace(choices=(("step", "eager"),), device="cpu", world=2)
    assert _scaling.has_own_step(asked) == "3 can't be cut into 2"
    assert _scaling.cant_run(_scaling.way_of("replicas"), asked) == "3 can't be cut into 2"


@pytest.mark.parametrize(
    ("name", "keeps"),
    [("fsdp", False), ("fsdp_keep", True), ("fsdp_ours", False), ("ddp", None), ("chunked_half", None)],
)
def test_weights_are_in_parts_where_the_way_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, keeps: bool | None
) -> None:
    made: list[bool] = []
    monkeypatch.setattr(_scaling, "ShardedTrainer", lambda *_, keeps: made.append(keeps))
    monkeypatch.setattr(_scaling, "RankTrainer", lambda *_, wrapped, mean: wrapped and mean is None)
    setup: Any = SimpleNamespace(device=torch.device("cpu"))
    found: object = _scaling.trainer_of(_scaling.way_of(name), FLOAT32, setup, 2)
    assert (found, made) == ((True, []) if keeps is None else (None, [keeps]))
    alone: object = _scaling.trainer_of(_scaling.way_of(name), FLOAT32, setup, 1)
    assert alone is False


@pytest.mark.parametrize("adam", [False, True])
def test_a_rehearsal_leaves_no_trace_in_masters_of_halves(adam: bool) -> None:
    """The trainer keeps masters for torch's optimizer; our AdamW keeps them in its state."""
    setup = Setup("llama_toy", 4, 5, torch.device("cpu"), torch.bfloat16, shard=1)
    found: list[list[float]] = []
    for rehearses in (False, True):
        trainer = RankTrainer(replace(FLOAT32, half="pure", adam=adam), setup, wrapped=False, mean=None)
        if rehearses:
            trainer.rehearse()
        found.append([trainer.loss_of_step().item() for _ in range(4)])
    assert found[0] == pytest.approx(found[1], rel=1e-2)
    assert found[0][0] - found[0][3] > 0.5
