"""Gradients of several ranks become means by copies: threads are ranks here. test_many_ranks.py has processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.collection.steps.training import _copies, _means
from harness.collection.steps.training._copies import SharedBuffer
from harness.collection.steps.training._means import BucketMean
from harness.collection.steps.training._ranks import BY_COPIES
from harness.collection.steps.training._scaling import prepare

MATRIX = (3, 2, 2, 5)


class Host:
    """Ranks of one host: their memory, and where they wait for each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: int) -> None:
        self.world, self.barrier, self.waits = world, Barrier(world), 0
        self.memory: list[Tensor] = []
        monkeypatch.setattr(_copies, "room", self.room)

    def room(self, like: Tensor, elements: int, _group: Any) -> tuple[list[Tensor], Callable[[], object], int]:
        """Their memory. What isn't written stays NaN, so that nothing can become a part of a mean unnoticed."""
        if self.barrier.wait() == 0:
            self.memory = [torch.full((elements,), float("nan"), dtype=like.dtype) for _ in range(self.world)]
        self.barrier.wait()
        return self.memory, self.wait, 7

    def wait(self) -> None:
        if self.barrier.wait(timeout=60) == 0:
            self.waits += 1

    def ranks(self, work: Callable[[Any], Any]) -> list[Any]:
        """What each rank's work gives, from its group."""
        groups = [SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: self.world) for rank in range(self.world)]
        with ThreadPoolExecutor(self.world) as threads:
            return list(threads.map(work, groups))


def weights_of(shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    made = [torch.zeros(shape) for shape in shapes]
    return [each.to(memory_format=torch.channels_last) if each.dim() == 4 else each for each in made]


def gradients_of(rank: int, step: int, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("shapes", [[(1,)], [(4,), MATRIX], [(7,), (2, 3), MATRIX]])  # of 1, 64 and 73 elements
def test_all_ranks_get_the_same_mean(
    monkeypatch: pytest.MonkeyPatch, world: int, shapes: list[tuple[int, ...]]
) -> None:
    host = Host(monkeypatch, world)

    def rank(group: Any) -> list[list[Tensor]]:
        weights, found = weights_of(shapes), []
        buffer = SharedBuffer(weights, group)
        for step in range(3):
            for weight, gradient in zip(weights, gradients_of(group.rank(), step, shapes), strict=True):
                weight.grad = torch.empty_like(weight).copy_(gradient)
            buffer.send(waits=True)
            found.append([weight.grad.clone() for weight in weights if weight.grad is not None])
        assert all(weight.grad is not None and weight.grad.stride() == weight.stride() for weight in weights)
        return found

    every = host.ranks(rank)
    for step in range(3):
        own = [gradients_of(number, step, shapes) for number in range(world)]
        want = [torch.stack(each).double().mean(0).float() for each in zip(*own, strict=True)]
        for found in every:
            torch.testing.assert_close(found[step], want, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(found[step], every[0][step], rtol=0, atol=0)
    assert host.waits == 2 * 3


def test_buckets_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_means, "BUCKET", 1)
    monkeypatch.setattr(_means, "process_group", lambda _backend: None)
    host, shapes = Host(monkeypatch, 2), [(3,), MATRIX]

    def rank(group: Any) -> tuple[list[Tensor], int, set[int]]:
        mean = BucketMean(torch.device("cpu"), lambda weights, _: SharedBuffer(weights, group))
        weights = [weight.requires_grad_() for weight in weights_of(shapes)]
        mean.watch(weights)
        torch.autograd.backward(weights, gradients_of(group.rank(), 0, shapes))
        mean(weights)
        return [weight.grad for weight in weights if weight.grad is not None], mean.uncounted, mean.copied

    want = [(one + other) / 2 for one, other in zip(*(gradients_of(each, 0, shapes) for each in (0, 1)), strict=True)]
    for found, uncounted, copied in host.ranks(rank):
        torch.testing.assert_close(found, want)
        assert (uncounted, copied) == (2 * 7, {4 * 32})  # of two buckets; shares are whole lines
    assert host.waits == 2 * 2


def test_torch_s_allocator_counts_what_is_not_shared() -> None:
    buffer = _means.Buffer(weights_of([(3,)]), None)
    assert (buffer.uncounted, buffer.copied) == (0, 0)


def test_copies_are_made_on_a_stream_beside_the_backward_which_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    on = ["the backward's"]

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            told.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def switched(stream: Stream) -> Iterator[None]:
        on.append(stream.name)
        yield
        on.pop()

    side = Stream("the side")
    monkeypatch.setattr(_copies, "_side", lambda _: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(on[-1]))
    monkeypatch.setattr(torch.cuda, "stream", switched)
    barrier = lambda: told.append(f"ranks meet on {on[-1]}")  # noqa: E731
    monkeypatch.setattr(_copies, "room", lambda *_: ([torch.zeros(128), torch.zeros(128)], barrier, 0))
    weights = weights_of([(3,)])
    weights[0].grad = torch.ones(3)
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    work = SharedBuffer(weights, group).send(waits=False)
    begun = ["the side waits for the backward's", "ranks meet on the side", "ranks meet on the side"]
    assert told == begun
    work.wait()
    assert told == [*begun, "the backward's waits for the side"]
    SharedBuffer(weights, group).send(waits=True)
    assert told == 2 * told[:4]


class Symmetric:
    """Torch's symmetric memory of two ranks."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, counted: int = 0, *, reaches: bool = True, other: bool = True
    ) -> None:
        self.own, self.allocated, self.counted = torch.zeros(8), 100, counted
        self.asked: list[object] = []
        from torch.distributed import _symmetric_memory

        monkeypatch.setattr(_symmetric_memory, "empty", self.empty)
        monkeypatch.setattr(_symmetric_memory, "rendezvous", self.rendezvous)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.allocated)
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, to: own != to and reaches)
        monkeypatch.setattr(_copies, "_told", lambda own: [other if isinstance(own, bool) else 3, own])
        monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")

    def empty(self, elements: int, **given: Any) -> Tensor:
        assert os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
        self.asked.append((elements, given))
        self.allocated += self.counted
        return self.own

    def rendezvous(self, memory: Tensor, group: object) -> Any:
        assert memory is self.own
        self.asked.append(group)
        return SimpleNamespace(get_remote_tensor=lambda *what: what, barrier="a barrier")


@pytest.mark.parametrize(("counted", "rest"), [(0, 32), (32, 0), (64, 0)])  # a later torch may count it, and round
def test_devices_write_symmetric_memory(monkeypatch: pytest.MonkeyPatch, counted: int, rest: int) -> None:
    memory = Symmetric(monkeypatch, counted)
    group: Any = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    like: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda", 1))
    every, barrier, uncounted = _copies.room(like, 8, group)
    assert memory.asked == [(8, {"dtype": torch.float32, "device": like.device}), group]
    assert every[0] == (0, (8,), torch.float32)
    assert every[1] is memory.own  # which would be freed otherwise
    assert [barrier, uncounted] == ["a barrier", rest]


@pytest.mark.parametrize(("reaches", "unable"), [({"reaches": False}, "1"), ({"other": False}, "3")])
def test_all_ranks_say_which_device_cannot_reach_another(
    monkeypatch: pytest.MonkeyPatch, reaches: dict[str, bool], unable: str
) -> None:
    Symmetric(monkeypatch, **reaches)
    like: Any = SimpleNamespace(dtype=torch.float32, device=torch.device("cuda", 1))
    what = rf"devices \[{unable}\] can't write the memory of all of \[3, 1\]: measure buckets"
    with pytest.raises(RuntimeError, match=what):
        _copies.room(like, 8, None)


def test_ranks_of_several_hosts_are_refused() -> None:
    ctx: Any = SimpleNamespace(group=SimpleNamespace(size=4, local_size=2))
    rung: Any = None
    with pytest.raises(RuntimeError, match=r"copies: devices can't write the memory of other hosts: measure buckets"):
        prepare(ctx, BY_COPIES, rung)
