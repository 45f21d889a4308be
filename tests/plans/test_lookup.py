"""Which measured size's plan a size takes: the nearest that is legal, and fast on both sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.plans import Entry, Plan, TimedPlan, choose
from tests.one_test import one_test

A, B, C = ({"threads": number} for number in (64, 128, 256))


def timed(plan: dict[str, int], time: float, *, rule: bool = False) -> TimedPlan:
    return TimedPlan(dict(plan), time, time, time, rule)


def entry(columns: int, *plans: TimedPlan, rows: int = 64) -> Entry:
    return Entry("op", "tuned", "float32", {"M": rows, "N": columns}, {}, plans, "", "", "", "", "", len(plans), 0)


def anything(_: Plan) -> bool:
    return True


def taken(entries: list[Entry], columns: int, legal: Callable[[Plan], bool] = anything) -> object:
    found = choose(entries, {"M": 64, "N": columns}, legal)
    return found and found.plan


def test_a_measured_size_has_its_fastest_plan_and_no_distance() -> None:
    found = choose([entry(1024, timed(A, 1.0), timed(B, 2.0, rule=True))], {"M": 64, "N": 1024}, anything)
    assert found
    assert (found.plan, found.distance, found.loss, found.shape) == (A, 0.0, 0.0, {"M": 64, "N": 1024})


def test_between_two_sizes_the_plan_is_taken_that_loses_least_at_the_worse_of_them() -> None:
    low = entry(1024, timed(A, 1.0), timed(C, 1.05), timed(B, 3.0, rule=True))
    high = entry(2048, timed(B, 1.0, rule=True), timed(C, 1.06), timed(A, 2.0))
    found = choose([low, high], {"M": 64, "N": 1300}, anything)
    assert found
    assert (found.plan, found.shape["N"]) == (C, 1024)
    assert found.loss == pytest.approx(0.06)
    assert found.distance == pytest.approx(0.3442, abs=1e-3)
    # The nearest of several sizes on the other side counts alone.
    farther = entry(2500, timed(A, 1.0), timed(C, 9.0), timed(B, 9.0, rule=True))
    assert taken([farther, low, high], 1300) == C
    # Without the size on the other side, the nearest one's fastest plan is taken.
    assert taken([low], 1300) == A
    # Two sizes on one side are no neighbours of each other's.
    assert taken([low, entry(900, timed(C, 1.0), timed(A, 9.0), timed(B, 9.0, rule=True))], 1300) == A


def test_between_two_sizes_that_are_far_only_a_plan_that_was_timed_at_both_is_taken() -> None:
    low = entry(1024, timed(A, 1.0), timed(C, 1.05), timed(B, 3.0, rule=True))
    high = entry(4096 * 4, timed(C, 1.0), timed(B, 2.0, rule=True))
    found = choose([low, high], {"M": 64, "N": 4096}, anything)
    assert found
    assert (found.plan, found.distance) == (C, 2.0)
    assert found.loss == pytest.approx(0.05)
    assert taken([low], 4096) is None
    assert taken([low, high], 4096, lambda plan: plan != C) is None
    assert taken([low, high], 4095) == C
    assert taken([low, high], 4097) == C
    assert taken([low, entry(4096 * 4 + 1, timed(C, 1.0), timed(B, 2.0, rule=True))], 4096) is None
    # 2048 columns are near enough to 1024 for its plans to decide alone.
    assert taken([low, high], 2048) == A


def test_a_size_that_is_nearer_but_on_no_side_hides_no_two_sizes_around() -> None:
    few, many = (entry(1024, timed(A, 1.0), timed(B, 3.0, rule=True), rows=rows) for rows in (16, 256))
    aside = entry(2100, timed(C, 1.0), timed(B, 3.0, rule=True), rows=64)
    found = choose([few, aside, many], {"M": 64, "N": 1024}, anything)
    assert found
    assert (found.plan, found.shape["M"]) == (A, 16)


def test_between_means_for_each_size() -> None:
    """Rows between the rows of both aren't enough where columns are beyond the columns of both."""
    few, many = (entry(1024, timed(A, 1.0), timed(B, 3.0, rule=True), rows=rows) for rows in (16, 256))
    near = [choose([few, many], {"M": 64, "N": columns}, anything) for columns in (1024, 1025, 1023)]
    assert [found and found.plan for found in near] == [A, None, None]


def test_a_plan_that_is_not_legal_here_is_not_taken() -> None:
    here = entry(1024, timed(A, 1.0), timed(C, 1.5), timed(B, 2.0, rule=True))
    assert taken([here], 1000, lambda plan: plan != A) == C
    assert taken([here], 1000, lambda _: False) is None


def test_where_no_plan_was_timed_on_both_sides_the_nearest_decides() -> None:
    low, high = (
        entry(1024, timed(A, 1.0), timed(B, 2.0, rule=True)),
        entry(1500, timed(C, 1.0), timed(B, 2.0, rule=True)),
    )
    assert taken([low, high], 1100, lambda plan: plan != B) == A
    assert taken([low, high], 1400, lambda plan: plan != B) == C


@pytest.mark.parametrize(("rule", "stays"), [(3.0, True), (3.027, True), (3.036, False)])
def test_the_rule_stays_where_it_loses_no_more_than_a_hundredth(rule: float, stays: bool) -> None:
    found = taken([entry(1024, timed(A, 3.0), timed(B, rule, rule=True))], 1024)
    assert found == (None if stays else A)


def test_the_rule_stays_where_the_search_put_it_first_since_no_plan_was_surely_faster() -> None:
    best, rule = timed(A, 1.0), timed(B, 1.2, rule=True)
    assert taken([entry(1024, rule, best)], 1024) is None
    assert taken([entry(1024, best, rule)], 1024) == A


@one_test(("columns", "near"), [(2048, True), (2049, False), (512, True), (511, False)])
def test_a_size_more_than_a_factor_of_two_away_is_no_neighbour(columns: int, near: bool) -> None:
    assert bool(taken([entry(1024, timed(A, 1.0), timed(B, 2.0, rule=True))], columns)) == near


def test_other_sizes_count_too() -> None:
    one = entry(1024, timed(A, 1.0), timed(B, 2.0, rule=True), rows=1)
    found = [choose([one], {"M": rows, "N": 1024}, anything) for rows in (1, 2, 3)]
    assert [each and each.distance for each in found] == [0.0, 1.0, None]
    far = entry(1024, timed(A, 1.0), timed(B, 2.0, rule=True), rows=1024)
    assert taken([far], 1024) is None
    assert taken([], 1024) is None
