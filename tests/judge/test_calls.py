"""Which calls of torch a call makes, and whether it has a kernel of its own."""

from __future__ import annotations

import ctypes
import weakref

import torch

from harness.judge import data
from harness.judge.calls import seen
from tests.one_test import one_test

X = torch.arange(12.0).reshape(3, 4)


def own_kernel(out: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    """Writes into a tensor without torch's dispatcher, as a kernel does."""
    ctypes.memmove(out.data_ptr(), of.data_ptr(), of.nbytes)
    return out


def into(out: torch.Tensor) -> torch.Tensor:
    torch.mul(X, 2, out=out)
    return out


@one_test(
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
        found = seen(lambda: torch.ops.judged_test.twice(X) + 1, data.tensors)
    assert (found.others, found.torch) == (("judged_test::twice",), ("aten.add",))
    assert not found.only_torch


def test_what_a_call_reads_by_a_name_counts_too() -> None:
    weight = torch.empty(12)

    def call() -> torch.Tensor:
        return torch.histogram(X.reshape(-1), 3, weight=own_kernel(torch.empty_like(weight), X)).hist

    found = seen(call, data.tensors)
    assert (found.torch, found.only_torch) == (("aten.histogram",), False)


def test_memory_of_a_tensor_is_given_to_no_other_one_while_it_looks() -> None:
    left: list[bool] = []

    def call() -> torch.Tensor:
        between = weakref.ref(torch.relu(X))
        left.append(between() is not None)
        return X + 1

    seen(call, data.tensors)
    assert left == [True]


def test_twelve_calls_are_told() -> None:
    names = [
        "abs",
        "acos",
        "asin",
        "atan",
        "ceil",
        "cos",
        "erf",
        "exp",
        "floor",
        "neg",
        "relu",
        "sigmoid",
        "sin",
        "tan",
    ]
    with torch.library._scoped_library("judged_test", "DEF") as library:
        for name in names:
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x.clone(), "CompositeExplicitAutograd")
        found = seen(
            lambda: [(getattr(torch, name)(X), getattr(torch.ops.judged_test, name)(X)) for name in names], data.tensors
        )
    assert found.torch == tuple(f"aten.{name}" for name in names[:12])
    assert found.others == tuple(f"judged_test::{name}" for name in names[:12])
