"""Tensors inside the data of a form."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from harness.judge import data
from harness.judge.records import TensorForm


class Pair(NamedTuple):
    first: Any
    second: Any


ONE, TWO, THREE, FOUR = (torch.full((size,), float(size)) for size in (1, 2, 3, 4))
DATA = (ONE, [TWO, 5], {"a": THREE, "b": "text"}, Pair(FOUR, None))


def test_tensors_are_found_in_their_order() -> None:
    assert [len(one) for one in data.tensors(DATA)] == [1, 2, 3, 4]
    assert data.tensors(ONE)[0] is ONE
    assert data.tensors(7) == data.tensors(None) == []


def test_other_values_stand_in_the_places_of_tensors() -> None:
    assert data.replaced(DATA, "abcd") == ("a", ["b", 5], {"a": "c", "b": "text"}, Pair("d", None))
    made = data.replaced(DATA, "abcd")
    assert [type(part) for part in made] == [str, list, dict, Pair]
    assert data.replaced(ONE, "a") == "a"


def test_each_tensor_is_changed() -> None:
    assert data.mapped(DATA, len) == (1, [2, 5], {"a": 3, "b": "text"}, Pair(4, None))


def test_the_form_of_a_tensor() -> None:
    tensor = torch.zeros(2, 3, dtype=torch.float16).t()
    assert data.described(tensor, 4) == TensorForm((3, 2), "float16", 4, (1, 3))
    assert data.described(ONE).place == 0
