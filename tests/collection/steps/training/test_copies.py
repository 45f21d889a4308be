"""Gradients of several ranks become means by copies: threads are ranks here. test_many_ranks.py has processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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

    def room(self, like: Tensor, elements: int, group: Any) -> tuple[list[Tensor], Callable[[], object]]:
        """What isn't written stays NaN, so that nothing can become a part of a mean unnoticed."""
        if self.barrier.wait() == 0:
            self.memory = [torch.full((elements,), float("nan"), dtype=like.dtype) for _ in range(self.world)]
        self.barrier.wait()
        return self.memory, self.wait

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

    def rank(group: Any) -> tuple[list[Tensor], int]:
        mean = BucketMean(torch.device("cpu"), lambda weights, _: SharedBuffer(weights, group))
        weights = [weight.requires_grad_() for weight in weights_of(shapes)]
        mean.watch(weights)
        torch.autograd.backward(weights, gradients_of(group.rank(), 0, shapes))
        mean(weights)
        return [weight.grad for weight in weights if weight.grad is not None], mean.uncounted

    want = [(one + other) / 2 for one, other in zip(*(gradients_of(each, 0, shapes) for each in (0, 1)), strict=True)]
    for found, uncounted in host.ranks(rank):
        torch.testing.assert_close(found, want)
        # Shares of two and of thirty elements, two of them of gradients and two of places for others' gradients.
        assert uncounted == 4 * 4 * (2 + 30)
    assert host.waits == 2 * 2


def test_torch_s_allocator_counts_what_is_not_shared() -> None:
    weights = weights_of([(3,)])
    assert _means.Buffer(weights, None).uncounted == 0


def test_ranks_of_several_hosts_are_refused() -> None:
    ctx: Any = SimpleNamespace(group=SimpleNamespace(size=4, local_size=2))
    rung: Any = None
    with pytest.raises(RuntimeError, match=r"copies: devices can't write the memory of other hosts: measure buckets"):
        prepare(ctx, BY_COPIES, rung)
