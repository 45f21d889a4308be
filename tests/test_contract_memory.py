"""Which outputs share memory, and which tensors are the same."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.contract import _faults, _form, _is_dense, _Region, _shared, same
from harness.ops import Tensor, comparer

MEMORY = torch.arange(64, dtype=torch.float32)


def shared(*tensors: torch.Tensor, inputs: int = 1) -> str | None:
    """What is said of tensors, of which the first ones are inputs."""
    kinds = ["input"] * inputs + ["output"] * (len(tensors) - inputs)
    return _shared(
        [_Region.of(f"the {kind} {i}", t) for i, (kind, t) in enumerate(zip(kinds, tensors, strict=True))], inputs
    )


def test_the_only_output_may_not_be_its_own_input() -> None:
    told = "1 shares memory with the input 0: an output must have memory of its own"
    assert shared(MEMORY, MEMORY) == told
    assert shared(MEMORY[:40], MEMORY[39:]) == told
    assert shared(MEMORY[39:], MEMORY[:40]) == told


def test_inputs_may_share_memory_and_neighbours_share_none() -> None:
    assert shared(MEMORY, MEMORY, MEMORY.clone(), inputs=2) is None
    assert shared(MEMORY[:32], MEMORY[32:]) is None
    assert shared(MEMORY[32:], MEMORY[:32]) is None


def test_bytes_inside_of_an_element_count() -> None:
    inner = MEMORY.view(torch.uint8)[4 * 5 + 1 : 4 * 5 + 3]
    assert shared(MEMORY, inner) is not None
    assert shared(inner, MEMORY) is not None
    assert shared(MEMORY[:5], inner) is None


@pytest.mark.parametrize("one", [(3, 1), (1, 4), (1, 1)])
def test_an_output_that_is_expanded_in_any_dimension_has_elements_in_one_place(one: tuple[int, int]) -> None:
    ctx: Any = SimpleNamespace(case=SimpleNamespace(dtype="float32"), device=torch.device("cpu"))
    declared = Tensor("y", ("M", "N"))
    assert list(_faults(ctx, declared, "y", (3, 4), torch.zeros(3, 4))) == []
    [found] = _faults(ctx, declared, "y", (3, 4), torch.zeros(one).expand(3, 4))
    assert found.startswith("y has several elements in one place of memory")
    [found] = _faults(ctx, declared, "y", (2, 4), torch.zeros(1, 4).expand(2, 4))
    assert found.startswith("y has several elements in one place of memory")
    single = torch.zeros(4).as_strided((1, 4), (0, 1))
    assert list(_faults(ctx, declared, "y", (1, 4), single)) == [], "one row has no other one to share memory with"


def test_an_output_that_is_a_list_must_be_one() -> None:
    ctx: Any = SimpleNamespace(case=SimpleNamespace(dtype="float32", values={}), device=torch.device("cpu"))
    declared = Tensor("y", lambda _: [(3,), (4,)])
    assert _form(ctx, declared, torch.zeros(3)) == "y is a Tensor, not a list of tensors"
    assert _form(ctx, declared, (torch.zeros(3), torch.zeros(4))) is None


def test_a_list_with_a_sparse_tensor_is_not_watched() -> None:
    assert _is_dense(MEMORY)
    assert _is_dense([MEMORY, MEMORY])
    for other in (MEMORY.to_sparse(), None, 3):
        assert not _is_dense(other)
        assert not _is_dense([MEMORY, other])


def test_the_first_and_the_last_of_several_outputs_are_looked_at() -> None:
    own = [torch.zeros(8) for _ in range(3)]
    assert shared(MEMORY, *own) is None
    assert str(shared(MEMORY, MEMORY[3:4], *own)).startswith("1 shares memory with the input 0")
    assert str(shared(MEMORY, *own, MEMORY[3:4])).startswith("4 shares memory with the input 0")
    assert str(shared(MEMORY, *own, own[0][7:])).startswith("4 shares memory with the output 1")


def test_rows_that_alternate_share_no_memory() -> None:
    rows = MEMORY.view(8, 8)
    assert shared(rows[::2], rows[1::2]) is None
    assert shared(rows[:, :4], rows[:, 4:]) is None
    assert shared(rows[:, :4], rows[:, 3:]) is not None
    assert shared(rows[::2], rows[1::2], rows[7, 7:]) is not None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64, torch.complex64])
def test_tensors_are_the_same_if_all_bits_are(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Also where they are compared in several chunks."""
    monkeypatch.setattr(comparer, "CHUNK", 4)
    one = torch.arange(10).to(dtype)
    assert same(one, one.clone())
    for place in (0, 3, 4, 9):
        other = one.clone()
        other[place] += 1
        assert not same(one, other), place
        assert not same([one, one], [one, other])
        assert not same([one, one], [other, one])
    assert not same(one, one[:9])
    assert not same([one], [one, one])
    assert same([one, one], (one, one))


def test_nan_is_the_same_as_nan_and_zeros_have_signs() -> None:
    assert same(torch.tensor([math.nan]), torch.tensor([math.nan]))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(torch.tensor([1]), torch.tensor([1], dtype=torch.int32))
