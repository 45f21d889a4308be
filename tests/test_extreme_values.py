"""Where extreme values stand in tensors, and in which calls: by the functions that place them, without a variant."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import extremes
from harness.ops import Tensor
from tests.one_test import one_test

TINY, LARGEST = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
ROW = [1.0, -2.0, 0.0, -4.0, 5.0]


@one_test(
    ("kind", "row"),
    [
        ("infinity", [math.inf, *ROW[1:]]),
        ("outlier", [*ROW[:2], LARGEST, *ROW[3:]]),
        ("nan", [*ROW[:4], math.nan]),
        ("denormal", [sign * 0.375 * TINY for sign in (1, -1, 1, -1, 1)]),
        ("masked", [1.0, -math.inf, 0.0, -math.inf, 5.0]),
    ],
)
def test_what_a_row_of_a_kind_has(kind, row):
    rows = torch.tensor([ROW, ROW])
    extremes._fill(rows, kind, LARGEST)
    torch.testing.assert_close(rows, torch.tensor([row, row]), rtol=0, atol=0, equal_nan=True)


def test_values_that_come_once_stand_first_in_the_middle_and_last_in_each_dimension():
    for kind, place in (("infinity", (0, 0)), ("outlier", (1, 2)), ("nan", (2, 4))):
        rows = torch.ones(2, 3, 5)
        extremes._fill(rows, kind, 7.0)
        assert [tuple(one) for one in (rows[0] != 1).nonzero().tolist()] == [place]


@one_test(
    ("shape", "dimension", "pieces", "rows"),
    [
        ((2, 3, 4), None, 9, (6, 4)),
        ((2, 3, 4), 1, 9, (3, 2, 4)),
        ((10,), None, 4, (5, 2)),
        ((11,), None, 4, (5, 2)),
        ((3,), None, 4, (3, 1)),
        ((6,), None, 1, (1, 6)),
        ((6,), None, 0, (1, 6)),
    ],
)
def test_rows_are_of_a_dimension_or_pieces(shape, dimension, pieces, rows):
    assert extremes._rows(torch.ones(shape), dimension, pieces).shape == rows


def test_rows_are_views_of_the_end_of_a_tensor():
    tensor = torch.arange(11.0)
    assert extremes._rows(tensor, None, 4)[0].tolist() == [1.0, 2.0]
    turned = torch.ones(3, 4).t()
    assert extremes._rows(turned, None, 4) is turned


def test_inputs_are_small_up_to_65536_elements():
    def small(*sizes: int) -> bool:
        return extremes._are_small(SimpleNamespace(x=[torch.ones(size) for size in sizes], n=3, y=torch.ones(6)))

    assert small(2**15, 2**15 - 6)
    assert not small(2**15, 2**15 - 5)


class Rows(SimpleNamespace):
    """An input whose rows a test looks at. count: of rows; kinds: that it may have."""

    def __init__(self, number: int, count: int, *kinds: str) -> None:
        super().__init__(number=number, kinds=kinds, largest=9.0, tensor=torch.ones(count, 3))

    def rows(self, _inputs: object, _pieces: int) -> torch.Tensor:
        return self.tensor

    def of(self, value: float) -> list[int]:
        return [number for number, row in enumerate(self.tensor) if row[0] == value]


KINDS = ("zeros", "lowest")


def test_extreme_rows_of_one_input_meet_normal_rows_of_the_next():
    first, second = Rows(0, 8, *KINDS), Rows(1, 8, *KINDS)
    extremes._mix([first, second], KINDS, None)
    assert [(one.of(0.0), one.of(-9.0)) for one in (first, second)] == [([1, 5], [3, 7]), ([2, 6], [0, 4])]
    shifted = Rows(0, 8, "lowest")
    extremes._mix([shifted], KINDS, None, 1)
    assert (shifted.of(0.0), shifted.of(-9.0)) == ([], [2, 6])


@one_test(("number", "turn", "rows"), [(0, 0, [0, 2, 4]), (0, 1, [1, 3]), (1, 0, [1, 3]), (1, 1, [0, 2, 4])])
def test_alone_a_kind_has_every_second_row(number, turn, rows):
    place = Rows(number, 5, "zeros")
    made = extremes._alone([place, Rows(0, 5, "lowest")], "zeros", 4, turn)
    made.fill(None)
    assert (made.kinds, place.of(0.0)) == (("zeros",), rows)


def rounds(monkeypatch: pytest.MonkeyPatch, *places: Rows, elements: int = 9) -> list[tuple[tuple[str, ...], str]]:
    """The kinds of each round, and how it fills."""
    how: list[str] = []
    monkeypatch.setattr(extremes, "_places", lambda *_: iter(places))
    monkeypatch.setattr(extremes, "_mix", lambda places, kinds, _, start=0: how.append(f"mix {len(places)} {start}"))
    monkeypatch.setattr(
        extremes,
        "_alone",
        lambda places, kind, pieces, turn: extremes.Round((kind,), lambda _: how.append(f"{len(places)} {turn}")),
    )
    ctx: Any = SimpleNamespace(generator=SimpleNamespace(initial_seed=lambda: 5))
    found = list(extremes.rounds(ctx, SimpleNamespace(x=torch.ones(elements))))
    for one in found:
        one.fill(None)
    return [(one.kinds, text) for one, text in zip(found, how, strict=True)]


def test_inputs_with_rows_for_all_kinds_share_a_call_and_others_have_one_a_kind(monkeypatch):
    many, few, single = Rows(0, 4, *KINDS), Rows(1, 3, "lowest"), Rows(2, 1, "zeros")
    assert rounds(monkeypatch, many) == [(KINDS, "mix 1 0")]
    assert rounds(monkeypatch, many, few) == [(KINDS, "mix 1 0"), (("zeros",), "1 0"), (("lowest",), "1 0")]
    turns = [((kind,), f"2 {turn}") for kind in KINDS for turn in (0, 1)]
    assert rounds(monkeypatch, few, single) == turns, "single rows of two inputs aren't extreme in the same call"
    assert rounds(monkeypatch, few, Rows(2, 2, "zeros"), elements=2**17) == [(KINDS, "mix 2 5")]
    assert rounds(monkeypatch, many, few, elements=2**17) == [(KINDS, "mix 1 0")]
    assert rounds(monkeypatch) == []


def test_a_round_of_several_kinds_is_told_by_one_of_each(monkeypatch):
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(extremes, "_places", lambda *_: iter("p"))
    monkeypatch.setattr(extremes, "_alone", lambda *given: made.append(given))
    list(extremes.single(None, None, extremes.Round((*KINDS, "nan"), print)))
    assert made == [(["p"], kind, 6, 0) for kind in (*KINDS, "nan")]


def test_what_is_wrong_with_two_kinds_is_told_by_the_one_that_is_wrong_alone(monkeypatch):
    def of(*kinds: str) -> extremes.Round:
        return extremes.Round(kinds, lambda tensors: setattr(tensors, "kinds", kinds))

    monkeypatch.setattr(extremes, "rounds", lambda *_: iter([of("zeros", "nan")]))
    monkeypatch.setattr(extremes, "single", lambda *_: map(of, ("zeros", "nan")))
    monkeypatch.setattr(extremes.check, "make_inputs", lambda _: SimpleNamespace(x=torch.ones(3)))
    ctx: Any = SimpleNamespace(generator=torch.Generator())
    said = extremes.complaint(
        ctx, SimpleNamespace(), lambda tensors: "off" if "nan" in tensors.kinds else None, thorough=False
    )
    assert said == f"where inputs have {extremes.KINDS['nan']}: off"


def test_tensors_of_a_list_are_shifted_against_each_other_and_a_check_is_enough():
    def places(**of: Any) -> list[tuple[int, int | None]]:
        known = {"extremes": None, "make": None, "reference": None, "check": print, "inputs": (Tensor("x", ("N",)),)}
        ctx: Any = SimpleNamespace(op=SimpleNamespace(**(known | of)), case=SimpleNamespace(dtype="float32"))
        inputs = SimpleNamespace(x=[torch.ones(2), torch.ones(0), torch.ones(3), torch.ones(2).int()])
        return [(one.number, one.part) for one in extremes._places(ctx, inputs)]

    assert places() == places(check=None, reference=print) == [(0, 0), (2, 2)]
    assert places(check=None) == places(make=print) == []
