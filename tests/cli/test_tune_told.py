"""What `harness tune` prints: the plans of a dry run, and what is left when the time is over."""

from __future__ import annotations

from collections.abc import Mapping

from harness.cli import tune_told
from harness.model import Case, Timing
from harness.tune import Ahead, Candidate, Listed, ToTune


def listed(plans: int, refused: Mapping[str, int], left_out: int = 0) -> Listed:
    found = [Candidate({"n": number}, rule=not number) for number in range(plans)]
    found += [Candidate({"n": plans + number}, dropped="spills") for number in range(left_out)]
    return Listed(Case("op", "tuned", "float32", (("N", 8),), device="cpu"), tuple(found), refused=refused)


def test_one_measurement_is_no_measurements() -> None:
    assert tune_told.total([[listed(1, {})]], Timing()).startswith("1 measurement in 1 round, ")


def test_refused_plans_are_counted_by_their_reasons_and_nothing_is_cut_unsaid() -> None:
    few = listed(2, {"odd": 1, "more rows than there are\nin this": 3}, left_out=1)
    assert tune_told.lines(few) == [
        "op/tuned/float32/N8: 2 plans to time, 4 refused, 1 left out",
        "  plan  registers  shared",
        "  n0                       by the rule",
        "  n1",
        "  refused: 3 plans: more rows than there are",
        "  refused: 1 plan: odd",
        "  left out: n2: spills",
    ]
    many = listed(14, {f"why {number}": 1 for number in range(15)}, left_out=16)
    assert [line for line in tune_told.lines(many) if line.startswith("  and")] == [
        "  and 2 more",
        "  and 3 more reasons",
        "  and 4 more left out",
    ]
    told = tune_told.total([[few], [many]], Timing())
    assert told.startswith("16 plans to time, 19 refused, 17 left out at 2 sizes; ")


def test_when_the_time_is_over_each_op_that_is_left_is_told_with_what_it_has() -> None:
    ahead = [Ahead(ToTune(op, "tuned", (), "cpu"), plans=8, sizes=2) for op in ("a", "b", "c")]
    assert tune_told.begun(ahead[1], 2, 3) == "b: 8 plans at 2 sizes (op 2 of 3)"
    told = tune_told.over(ahead, [2, 1, 0])
    assert told == "the time is over; 3 of 6 sizes done; left: b (1 of 2), c (0 of 2); the same command goes on"
    assert tune_told.over(ahead[:1], [1]) == "the time is over; 1 of 2 sizes done; the same command goes on"
