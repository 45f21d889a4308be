"""Which calls of torch a call makes, and whether it has a kernel of its own."""

from __future__ import annotations

import ctypes

import pytest
import torch

from harness.judge import data
from harness.judge.calls import seen

X = torch.arange(12.0).reshape(3, 4)


def own_kernel(out: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Writes into a tensor without torch's dispatcher, as a kernel does."""
    ctypes.memmove(out.data_ptr(), of.data_ptr(), of.nbytes)
    return out


def into(out: torch.Tensor) -> torch.Tensor:
    torch.mul(X, 2, out=out)
    return out


@pytest.mark.parametrize(
    ("call", "torchs", "only"),
    [
        (lambda: torch.relu(X) + 1, ("aten.relu", "aten.add"), True),
        (lambda: into(torch.empty_like(X)), ("aten.mul",), True),
        (lambda: torch.relu(X).t().contiguous(), ("aten.relu",), True),
        (lambda: own_kernel(torch.empty_like(X), X), (), False),
        (lambda: own_kernel(torch.zeros_like(X), X), (), False),
        (lambda: own_kernel(X.clone(), X), (), False),
        (lambda: torch.relu(own_kernel(torch.empty_like(X), X)), ("aten.relu",), False),
        (lambda: (torch.relu(X), own_kernel(torch.empty_like(X), X)), ("aten.relu",), False),
    ],
)
def test_a_kernel_of_its_own_shows_in_memory_that_nobody_computed(call, torchs, only):
    found = seen(call, data.tensors)
    assert (found.torch, found.others, found.only_torch) == (torchs, (), only)


def test_operators_of_other_libraries() -> None:
    with torch.library._scoped_library("judged_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        found = seen(lambda: torch.ops.judged_test.twice(X), data.tensors)
    assert found.others == ("judged_test::twice",)
    assert not found.only_torch
