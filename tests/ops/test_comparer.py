"""The one comparison: what is right, and what is said of the rest."""

from __future__ import annotations

import math

import pytest
import torch

from harness.ops import Expected, comparer
from harness.ops.comparer import complaint
from tests.one_test import one_test

INF, NAN = math.inf, math.nan


def compared(got, want, allowed=None, *, dtype=torch.float32, wide=torch.float64, **options) -> str | None:
    """The complaint about one output, given as numbers."""
    limit = torch.tensor(allowed, dtype=wide) if isinstance(allowed, list) else allowed
    return complaint([Expected("y", torch.tensor(got, dtype=dtype), torch.tensor(want, dtype=wide), limit, **options)])


def test_nothing_to_compare_is_no_complaint():
    assert complaint([]) is None
    assert compared([], []) is None


def test_what_is_wrong_is_counted_measured_and_placed():
    assert compared([1, 2, 5, 3.5], [1, 2, 3, 4]) == (
        "y: 2 of 4 elements are wrong by up to 2; element 2 is 5.0, the reference 3.0"
    )


def test_what_is_allowed_is_said():
    assert compared([1.5, 3], [1, 2], 0.5) == (
        "y: 1 of 2 elements are wrong by up to 1; element 1 is 3.0, the reference 2.0 within 0.5"
    )


@pytest.mark.parametrize("got_shape", [(6,), (3, 2), (2, 3, 1)])
def test_a_wrong_shape_is_said_even_where_it_would_broadcast(got_shape):
    part = Expected("y", torch.zeros(got_shape), torch.zeros(2, 3))
    assert complaint([part]) == f"y has shape {got_shape}, the reference (2, 3)"


# Without tolerance: the reference, rounded.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_must_be_the_reference_rounded(dtype):
    want = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rounded = want.to(dtype)
    assert complaint([Expected("y", rounded, want)]) is None
    rounded.view(torch.int16)[7] += 1  # a unit in the last place
    assert "1 of 1000 elements are wrong" in complaint([Expected("y", rounded, want)])


def test_what_the_type_rounds_to_infinity_is_right():
    assert compared([INF, -INF], [65520, -1e6], dtype=torch.float16) is None
    assert compared([65504], [1e6], dtype=torch.float16)
    assert compared([INF], [65519], dtype=torch.float16)


def test_an_infinity_is_right_where_an_allowed_number_rounds_to_it():
    """Halves end at 65504; from 65520 on a number rounds to infinity."""
    assert compared([INF, -INF, 1.0], [65500, -65500, 1], 25.0, dtype=torch.float16) is None
    assert "element 0 is inf" in compared([INF, 1.0], [65500, 1], 15.0, dtype=torch.float16)
    assert "element 0 is -inf" in compared([-INF], [65500], 25.0, dtype=torch.float16)


def test_the_sign_of_a_zero_does_not_count():
    assert compared([-0.0], [0.0]) is None


# Infinities and NaN.


@pytest.mark.parametrize("allowed", [None, 1.0, [1.0, 1.0, 1.0]])
def test_infinities_meet_equal_ones_and_nan_meets_nan(allowed):
    assert compared([INF, -INF, NAN], [INF, -INF, NAN], allowed) is None


@one_test("allowed", [None, 1e300, INF])
@one_test("want", [INF, -INF, NAN])
@one_test("got", [1.0, INF, -INF, NAN])
def test_no_other_value_passes_for_one_that_is_not_finite(got, want, allowed):
    same = got == want or (math.isnan(got) and math.isnan(want))
    assert (compared([got], [want], allowed) is None) == same


@pytest.mark.parametrize("got", [INF, -INF, NAN])
def test_what_is_not_finite_is_infinitely_far_off(got):
    assert f"1 of 2 elements are wrong by up to inf; element 1 is {got}, the reference 2.0" in compared(
        [1, got], [1, 2], 1e30
    )


@one_test("want", [INF, -INF, NAN])
@one_test("got", [INF, -INF, NAN])
def test_loose_takes_any_value_that_is_not_finite(got, want):
    assert compared([got], [want], loose=True) is None
    assert compared([1.0], [want], loose=True)
    assert compared([got], [1.0], loose=True)


# With tolerance.


def test_allowed_is_one_number_or_one_an_element():
    assert compared([1.1, 2.2], [1, 2], 0.25) is None
    assert compared([1.1, 2.2], [1, 2], [0.125, 0.25]) is None
    assert "element 1 is" in compared([1.1, 2.2], [1, 2], [0.25, 0.125])


@pytest.mark.parametrize(
    ("allowed", "wrong"),
    [
        (torch.tensor([[1.0], [0.0]]), "element 4 is 4.5, the reference 4.0 within 0"),
        (torch.tensor([1.0, 0.0, 1.0]), "element 1 is 1.5, the reference 1.0 within 0"),
        (torch.tensor(0.25), "element 1 is 1.5, the reference 1.0 within 0.25"),
    ],
    ids=["by row", "by column", "one"],
)
def test_allowed_broadcasts_to_the_reference(allowed, wrong):
    want = torch.arange(6, dtype=torch.float64).view(2, 3)
    got = want.float()
    got[:, 1] += 0.5
    assert complaint([Expected("y", got, want, allowed)]).endswith(wrong)


def test_an_allowed_distance_that_is_not_a_number_allows_nothing():
    assert compared([1.0], [1.0], NAN) is None
    assert compared([1.5], [1.0], NAN)
    assert judged([1.5], [1.0], NAN).wrong, "nor a multiple of it"


@one_test("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool])
def test_integers_must_be_equal(dtype):
    want = torch.tensor([0, 1, 1, 0], dtype=dtype)
    assert complaint([Expected("y", want.clone(), want)]) is None
    assert "1 of 4 elements are wrong by up to 1; element 2 is " in complaint(
        [Expected("y", torch.tensor([0, 1, 0, 0], dtype=dtype), want)]
    )


def test_integers_may_be_as_far_off_as_allowed():
    # The differences don't fit into the type.
    assert compared([-128, 127], [127, -128], 255, dtype=torch.int8, wide=torch.int8) is None
    assert "wrong by up to 255; element 0" in compared([-128, 0], [127, 0], 254, dtype=torch.int8, wide=torch.int8)


# Parts, and several outputs.


def parts(*values: tuple[str, float, int]) -> list[Expected]:
    """Parts of two elements, whose second one has this value in place of 0."""
    return [
        Expected(name, torch.tensor([0.0, value]), torch.zeros(2, dtype=torch.float64), start=start)
        for name, value, start in values
    ]


def test_parts_of_an_output_are_counted_together():
    assert complaint(parts(("y", 0, 0), ("y", 3, 2), ("y", 7, 4), ("y", 0, 6))) == (
        "y: 2 of 8 elements are wrong by up to 7; element 3 is 3.0, the reference 0.0"
    )


def test_the_first_wrong_output_is_the_one_complained_of():
    assert complaint(parts(("a", 0, 0), ("b", 1, 0), ("c", 9, 0))).startswith(
        "b: 1 of 2 elements are wrong by up to 1;"
    )


def test_nothing_after_the_first_wrong_output_is_computed():
    def outputs():
        yield from parts(("a", 1, 0), ("b", 0, 0))
        raise AssertionError

    assert complaint(outputs()).startswith("a: 1 of 2")


def test_a_text_is_a_complaint_where_what_came_before_is_right():
    assert complaint([*parts(("a", 0, 0)), "too few are kept", *parts(("b", 1, 0))]) == "too few are kept"
    assert complaint([*parts(("a", 1, 0)), "too few are kept"]).startswith("a: 1 of 2")


def test_a_check_that_returns_a_text_complains_of_all_of_it():
    assert complaint("too few are kept") == "too few are kept"


@pytest.mark.parametrize("allowed", [None, 0.5, torch.full((10, 100), 0.5), torch.full((100,), 0.5)])
def test_chunks_report_the_place_in_the_whole(monkeypatch, allowed):
    monkeypatch.setattr(comparer, "CHUNK", 64)
    want = torch.zeros(10, 100, dtype=torch.float64)
    got = want.float()
    got.view(-1)[[500, 501, 900]] = torch.tensor([1.0, 3.0, 2.0])
    assert complaint([Expected("y", got, want, allowed)]).startswith(
        "y: 3 of 1000 elements are wrong by up to 3; element 500 is 1.0, the reference 0.0"
    )


def test_views_with_gaps_are_compared_in_their_own_order():
    whole = torch.arange(12.0)
    want = torch.tensor([[0, 6], [2, 8], [4, 9]], dtype=torch.float64)
    assert complaint([Expected("y", whole.view(2, 6)[:, ::2].T, want)]).startswith(
        "y: 1 of 6 elements are wrong by up to 1; element 5 is 10.0"
    )


# What is let through although it is off.


def judged(got, want, allowed=None, leeway=8.0, dtype=torch.float16) -> comparer.Verdict:
    part = Expected("y", torch.tensor(got, dtype=dtype), torch.tensor(want, dtype=torch.float64), allowed)
    return comparer.judged([part], leeway)


def test_a_little_too_far_off_is_inexact_and_says_how_far():
    # Halves from 16 to 32 are 1/64 apart.
    found = judged([17 + 3 / 64, 20], [17, 20], 1 / 128)
    assert found == comparer.Verdict(
        inexact="y: 1 of 2 elements are further off than allowed, by up to 3 units in the last place of float16 "
        "at the size of a typical element (6 times the tolerance); element 0 is 17.046875, the reference 17.0 within "
        "0.00781"
    )
    assert judged([17 + 3 / 64], [17], 1 / 128, leeway=0).wrong
    assert judged([17 + 3 / 64], [17], 3 / 64) == comparer.Verdict()


def test_of_several_inexact_elements_the_worst_is_told():
    said = judged([17 + 3 / 64, 20 + 5 / 64], [17, 20], 1 / 128).inexact
    assert "2 of 2 elements are further off than allowed, by up to 5 units" in said
    assert "(10 times the tolerance); element 0 is" in said


def test_less_than_a_unit_is_told_as_well():
    assert "by up to 0.6 units in the last place" in judged([17.0], [17 + 0.6 / 64]).inexact

    def part(name: str, units: float) -> Expected:
        want = torch.tensor([17 + units / 64], dtype=torch.float64)
        return Expected(name, torch.tensor([17.0], dtype=torch.float16), want)

    assert comparer.judged([part("a", 0.6), part("b", 0.8)], 8.0).inexact.startswith("b: ")


@pytest.mark.parametrize("other", [INF, -INF, NAN])
def test_what_is_not_finite_is_no_part_of_a_typical_element(other):
    """Halves at 2^-10 are 2^-20 apart."""
    for units, wrong in ((8, False), (9, True)):
        assert (judged([other, 2**-10 + units * 2**-20], [other, 2**-10]).wrong is not None) == wrong


@one_test(
    ("units", "allowed", "wrong"),
    [(8, 1 / 64, False), (9, 1 / 64, True), (8, 1e-6, False), (9, 1e-6, True), (16, 2 / 64, False), (17, 2 / 64, True)],
)
def test_beyond_eight_times_the_tolerance_it_is_wrong(units, allowed, wrong):
    """At least one unit in the last place counts as allowed."""
    found = judged([17 + units / 64], [17], allowed)
    assert (found.wrong is not None, found.inexact is not None) == (wrong, not wrong)


def test_a_rounding_to_the_other_side_is_inexact_where_nothing_is_allowed():
    assert (
        "1 units in the last place of float16 at the size of a typical element (none is allowed)"
        in judged([17 + 1 / 64], [17]).inexact
    )


@one_test("got", [INF, -INF, NAN])
@one_test("want", [INF, NAN, 1.0, 65504])
def test_what_is_not_finite_is_never_inexact(got, want):
    found = judged([got], [want], 1.0)
    assert found.inexact is None
    assert (found.wrong is None) == (got == want or (math.isnan(got) and math.isnan(want)))


def test_integers_are_never_inexact():
    want = torch.tensor([3, 4])
    assert comparer.judged([Expected("n", torch.tensor([3, 5]), want)], 8.0).wrong
    assert comparer.judged([Expected("n", torch.tensor([3.0, 5.0]), want)], 8.0).wrong


def test_one_wrong_output_makes_all_wrong_and_the_worst_of_inexact_ones_is_told():
    def part(name, units):
        return Expected(name, torch.tensor([17 + units / 64], dtype=torch.float16), torch.tensor([17.0]), 1 / 64)

    assert comparer.judged([part("a", 2), part("b", 3), part("c", 0)], 8.0).inexact.startswith("b: ")
    assert comparer.judged([part("a", 2), part("b", 30), part("c", 3)], 8.0).wrong.startswith("b: ")
    assert comparer.judged([part("a", 2), "too few are kept"], 8.0) == comparer.Verdict("too few are kept")


def test_the_smallest_numbers_have_a_unit_too():
    smallest = 2.0**-24
    assert judged([3 * smallest], [0.0]).inexact
    assert judged([9 * smallest], [0.0]).wrong


def test_the_small_ones_among_large_sums_have_the_unit_of_a_typical_one():
    """Partial sums that are rounded to halves are off by a unit of their own size, however small the whole sum is."""
    want = torch.tensor([300.0, -400.0, 350.0, 0.01] * 100)
    off = torch.zeros(400)
    off[3] = 0.5  # two units of numbers from 256 to 512, thousands of units of 0.01
    found = comparer.judged([Expected("sums", (want + off).half(), want, 1e-2 + want.abs() * 2**-11)], 8.0)
    assert "sums: 1 of 400 elements are further off than allowed, by up to 2" in found.inexact
    off[3] = 5.0
    assert comparer.judged([Expected("sums", (want + off).half(), want, 1e-2 + want.abs() * 2**-11)], 8.0).wrong


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_what_is_computed_wrongly_is_not_inexact(dtype):
    want = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for wrong in (-want, want.roll(1), want * 1.1, want + 0.1, torch.zeros_like(want)):
        assert comparer.judged([Expected("y", wrong.to(dtype), want, want.abs() * 1e-3)], 8.0).wrong
