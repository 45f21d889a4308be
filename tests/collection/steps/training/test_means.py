"""Gradients of two ranks, of which the other one has zeros, become means."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.collection.steps.training import _means
from harness.collection.steps.training._means import BucketMean, FlatMean, Mean, bucketed, gathered_mean

HALF = {torch.distributed.ReduceOp.AVG: 0.5}


class Later:
    """An all-reduce under way: its result is there once somebody waits for it."""

    def __init__(self, flat: Tensor, by: float) -> None:
        self.flat, self.by = flat, by

    def wait(self) -> None:
        self.flat.mul_(self.by)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of each all-reduce."""
    found: list[int] = []

    def all_reduce(flat: Tensor, how: Any, group: object, async_op: bool) -> Later | None:
        found.append(flat.numel())
        if async_op:
            return Later(flat, HALF[how])
        flat.mul_(HALF[how])
        return None

    monkeypatch.setattr(_means, "process_group", lambda _backend: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return found


def weights_of() -> list[Tensor]:
    made = torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.randn(5), torch.randn(4)
    return [weight.requires_grad_() for weight in made]


def backward(weights: Sequence[Tensor]) -> list[Tensor]:
    """A backward that makes new gradients, which are given; the first weight's comes last."""
    gradients = [torch.randn_like(weight) for weight in weights]
    loss = torch.zeros(())
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = None
        loss = loss + (weight * gradient).sum()
    loss.backward()
    return gradients


def assert_mean(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, gradient / 2, rtol=0, atol=0)
        assert weight.grad.stride() == weight.stride()


def buffers(weights: Sequence[Tensor]) -> list[int]:
    return [weight.grad.untyped_storage().data_ptr() for weight in weights if weight.grad is not None]


def test_all_gradients_become_views_of_one_buffer(sent: list[int]) -> None:
    weights, mean = weights_of(), FlatMean(torch.device("cpu"))
    for _ in range(2):  # the buffer is used again
        gradients = backward(weights)
        mean(weights)
        assert_mean(weights, gradients)
        assert len(set(buffers(weights))) == 1
    assert sent == [33, 33]


def watching(weights: Sequence[Tensor]) -> BucketMean:
    mean = BucketMean(torch.device("cpu"))
    mean.watch(weights)
    return mean


@pytest.mark.parametrize(("size", "elements"), [(1, [4, 5, 24]), (17, [9, 24]), (2**20, [33])])
def test_buckets_are_sent_in_the_backward(
    monkeypatch: pytest.MonkeyPatch, sent: list[int], size: int, elements: list[int]
) -> None:
    monkeypatch.setattr(_means, "BUCKET", size)
    weights = weights_of()
    mean: Mean = watching(weights)
    for _ in range(2):
        gradients = backward(weights)
        assert sent == elements
        mean(weights)
        assert_mean(weights, gradients)
        assert len(set(buffers(weights))) == len(elements)
        sent.clear()


def test_all_ranks_send_in_one_order_whichever_gradient_comes_first(
    monkeypatch: pytest.MonkeyPatch, sent: list[int]
) -> None:
    monkeypatch.setattr(_means, "BUCKET", 1)
    weights = weights_of()
    mean = watching(weights)
    (weights[0] * 2).sum().backward()
    assert sent == []  # its bucket is the last one
    (weights[2] * 2).sum().backward()
    assert sent == [4]
    (weights[1] * 2).sum().backward()
    assert sent == [4, 5, 24]
    mean(weights)


def test_a_backward_of_each_rank_for_itself_sends_nothing(sent: list[int]) -> None:
    weights = weights_of()
    mean = watching(weights)
    mean.sends = False
    gradients = backward(weights)
    assert sent == []
    torch.testing.assert_close([weight.grad for weight in weights], gradients, rtol=0, atol=0)
    mean.sends = True
    gradients = backward(weights)
    mean(weights)
    assert_mean(weights, gradients)


def test_a_weight_without_gradient_is_told(sent: list[int]) -> None:
    weights = weights_of()
    mean = watching(weights)
    (weights[0] * 2).sum().backward()
    with pytest.raises(RuntimeError, match="2 of 3 weights had no gradient"):
        mean(weights)
    assert sent == []


def test_gradients_of_micro_batches_are_sent_after_the_last_one(sent: list[int]) -> None:
    weights = weights_of()
    mean = watching(weights)
    mean.sends = False
    first = backward(weights)
    mean.sends = True
    second = [torch.randn_like(weight) for weight in weights]
    torch.autograd.backward(weights, second)
    mean(weights)
    assert sent == [33]
    assert_mean(weights, [one + other for one, other in zip(first, second, strict=True)])


def test_a_second_backward_before_the_means_are_taken_is_refused(sent: list[int]) -> None:
    weights = weights_of()
    mean = watching(weights)
    backward(weights)
    with pytest.raises(RuntimeError, match="a second backward"):
        backward(weights)
    assert sent == [33]
    mean(weights)


def test_weights_and_their_buckets_are_freed(sent: list[int]) -> None:
    weights = weights_of()
    mean = watching(weights)
    backward(weights)
    mean(weights)
    left = weakref.ref(mean), weakref.ref(weights[0])
    del mean, weights
    gc.collect()
    assert [each() for each in left] == [None, None]
    assert sent == [33]


def test_a_bucket_is_full_with_the_gradient_that_exceeds_it() -> None:
    sizes = [1, _means.BUCKET // 4 + 1, 3, _means.BUCKET // 4 - 3, 1]
    found = bucketed([torch.empty(size, device="meta") for size in sizes])
    assert [[weight.numel() for weight in some] for some in found] == [sizes[:2], sizes[2:4], sizes[4:]]


def test_the_reference_s_mean_is_of_gathered_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts that can't be flat, complex numbers, and gradients that have gradients; one weight has no gradient."""
    gathered: list[int] = []

    def all_gather(found: Sequence[Tensor], own: Tensor, group: object) -> None:
        gathered.append(own.numel())
        for factor, one in zip((1, 0, 5), found, strict=True):
            one.copy_(own * factor)

    monkeypatch.setattr(_means, "_PIECE", 10)
    monkeypatch.setattr(_means, "process_group", lambda _backend: None)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    wave = torch.randn(3, dtype=torch.complex64).requires_grad_()
    *weights, without = weights_of()
    weights.append(wave)
    for weight in weights:
        weight.grad = torch.randn_like(weight)  # in the layout of the weight
    assert weights[1].grad is not None
    # As backward(create_graph=True) leaves it.
    weights[1].grad = weights[1].grad * weights[1].detach().requires_grad_()
    before = [weight.grad.detach().clone() for weight in weights if weight.grad is not None]
    gathered_mean([*weights, without])
    assert gathered == [10, 10, 4, 5, 3]
    assert without.grad is None
    for weight, own in zip(weights, before, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.detach(), 2 * own)
