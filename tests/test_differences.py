from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from harness.differences import compare, compare_all, mismatches, work_fields
from harness.model import Case, DeviceFacts, Header, Limits, Machine, Measurement, Run, StreamPoint, Work
from tests.one_test import one_test

CASE = Case("copy", "eager", "float32", (("N", 8),))
OTHER = Case("copy", "tuned", "float32", (("N", 8),))
MACHINE = Machine("cuda", "c0ffee", (DeviceFacts("A GPU", 1, 1),), driver="580", versions=(("torch", "2.13.0"),))


def timed(low: float, middle: float, high: float, case: Case = CASE, process: int = 0, **fields: Any) -> Measurement:
    """Seven samples whose median is `middle`, known to lie between `low` and `high`."""
    return Measurement(case, "ok", (low, low, middle, middle, middle, high, high), process=process, **fields)


def run_of(*measurements: Measurement, machine: Machine = MACHINE) -> Run:
    return Run(Header("a", machine, (), (), "", "", len(measurements)), measurements)


@one_test(
    ("new", "verdict"),
    [
        ((4.0, 5.0, 6.0), "faster"),
        ((13.0, 20.0, 21.0), "slower"),
        ((11.0, 12.0, 13.0), "~"),
        ((8.0, 9.0, 9.5), "~"),
        ((11.5, 12.0, 13.0), "slower"),
    ],
)
def test_verdict_follows_from_whether_the_intervals_overlap(new: tuple[float, float, float], verdict: str) -> None:
    reference = timed(9.0, 10.0, 11.0)
    (difference,) = compare(run_of(reference), run_of(timed(*new)))
    assert difference.verdict == verdict
    assert difference.ratio == 10.0 / new[1]
    assert (difference.low, difference.high) == (9.0 / new[2], 11.0 / new[0])
    assert (difference.reference, difference.run, difference.samples) == (10.0, new[1], 7)


def test_touching_intervals_are_noise() -> None:
    (difference,) = compare(run_of(timed(9.0, 10.0, 11.0)), run_of(timed(11.0, 12.0, 13.0)))
    assert (difference.high, difference.verdict) == (1.0, "~")
    (difference,) = compare(run_of(timed(9.0, 10.0, 11.0)), run_of(timed(8.0, 8.5, 9.0)))
    assert (difference.low, difference.verdict) == (1.0, "~")


def test_too_few_samples_decide_nothing() -> None:
    few = Measurement(CASE, "ok", (5.0,) * 5)
    (difference,) = compare(run_of(timed(9.0, 10.0, 11.0)), run_of(few))
    assert (difference.verdict, difference.ratio, difference.low, difference.high) == ("~", 2.0, None, None)
    assert (difference.samples, difference.note) == (5, "5 samples are too few for an interval")
    (difference,) = compare(run_of(few), run_of(timed(9.0, 10.0, 11.0)))
    assert (difference.verdict, difference.low, difference.high) == ("~", None, None)


def test_a_case_without_a_time_on_either_side_is_missing_and_says_why() -> None:
    crashed = Measurement(CASE, "crashed", error="gone")
    wrong = Measurement(CASE, "wrong")
    good = timed(9.0, 10.0, 11.0)
    notes = {
        "crashed in the run": (run_of(good), run_of(crashed)),
        "not in the run": (run_of(good), run_of()),
        "not in the reference": (run_of(), run_of(good)),
        "wrong in the reference; crashed in the run": (run_of(wrong), run_of(crashed)),
    }
    for note, (reference, run) in notes.items():
        (difference,) = compare(reference, run)
        assert (difference.verdict, difference.note, difference.ratio) == ("missing", note, None)
    assert compare(run_of(good), run_of(crashed))[0].reference == 10.0


def test_cases_come_in_the_references_order_then_those_of_the_run() -> None:
    third = replace(CASE, variant="third")
    reference = run_of(timed(1, 1, 1, OTHER), timed(1, 1, 1, CASE))
    run = run_of(timed(1, 1, 1, third), timed(1, 1, 1, CASE), timed(1, 1, 1, OTHER))
    assert [difference.case for difference in compare(reference, run)] == [OTHER, CASE, third]


def test_samples_of_all_processes_count_on_the_side_that_has_fewer() -> None:
    twice = run_of(timed(1, 1, 1), timed(1, 1, 1, process=1))
    assert compare(twice, run_of(timed(1, 1, 1)))[0].samples == 7
    assert compare(twice, twice)[0].samples == 14


def test_alike_runs_have_no_mismatches() -> None:
    work = Work(1, 1)
    assert mismatches(run_of(timed(1, 1, 1, work=work)), run_of(timed(2, 2, 2, work=work))) == []


def test_mismatches_name_what_else_could_explain_a_change() -> None:
    newer = replace(
        MACHINE,
        devices=(DeviceFacts("Another", 1, 1),),
        fingerprint="f00d",
        driver="590",
        versions=(("torch", "2.14.0"), ("triton", "4")),
    )
    before = run_of(*(timed(1, 1, 1, case, timer="graph", work=Work(1, 1)) for case in (CASE, OTHER)))
    after = run_of(*(timed(1, 1, 1, case, timer="launch", work=Work(2, 1)) for case in (CASE, OTHER)), machine=newer)
    newer_harness = replace(after, header=replace(after.header, harness_version="0.2.0"))
    assert mismatches(before, newer_harness) == [
        "the harness differs: an unknown version -> 0.2.0",
        *mismatches(before, after),
    ]
    assert mismatches(before, after) == [
        "the machines differ: A GPU (c0ffee) in the reference, Another (f00d) in the run",
        "the software differs: driver 580 -> 590, torch 2.13.0 -> 2.14.0, triton none -> 4",
        "timed in another way: copy/eager/float32/N8 (graph -> launch) and 1 more",
        "other bytes or operations under the same name: copy/eager/float32/N8 and 1 more",
    ]


@one_test(
    ("after", "fields"),
    [
        (Work(1, 1, (("float16", 9),), items=3), ()),
        (Work(2, 1, (("float16", 9),), items=3), ("bytes read",)),
        (Work(1, 2, (("float16", 8),), items=3), ("bytes written", "operations")),
        (Work(1, 1, (("float16", 4), ("tf32", 5)), items=3), ("types of operations",)),
        # An op need not declare its operations.
        (Work(1, 1, items=3), ()),
        (Work(1, 1, (("float16", 9),), sent=5), ("bytes sent", "items")),
        (Work(1, 1, (("float16", 9),), items=3, again=1), ()),
    ],
)
def test_work_differs_where_both_sides_declare_it(after: Work, fields: tuple[str, ...]) -> None:
    assert work_fields(Work(1, 1, (("float16", 9),), items=3), after) == fields
    strict = work_fields(Work(1, 1, (("float16", 9),), items=3), after, strict=True)
    assert set(strict) - set(fields) == (
        ({"operations"} if not after.flops else set()) | ({"bytes read again"} if after.again else set())
    )


def test_a_mismatch_of_one_case_names_it_alone_and_of_several_runs_each_names_its_run() -> None:
    before, after = (run_of(timed(1, 1, 1, timer=timer)) for timer in ("graph", "launch"))
    text = "timed in another way: copy/eager/float32/N8 (graph -> launch)"
    assert compare_all("a", {"a": before, "b": after}).notes == (text,)
    assert compare_all("a", {"a": before, "b": after, "c": after}).notes == (f"b: {text}", f"c: {text}")


def test_processes_that_disagree_are_noise() -> None:
    twice = run_of(timed(9.0, 10.0, 10.5), timed(11.5, 12.0, 12.2, process=1))
    (difference,) = compare(twice, run_of(timed(8.0, 9.1, 9.2)))
    assert (difference.verdict, difference.low, difference.high) == ("~", 9.0 / 9.2, 12.2 / 8.0)


def test_several_runs_have_the_same_cases_in_the_same_order_and_a_mean_each() -> None:
    one, other = timed(9.0, 10.0, 11.0), timed(19.0, 20.0, 21.0, OTHER)
    runs = {
        "a": run_of(one),
        "base": run_of(one, other),
        "b": run_of(timed(4.9, 5.0, 5.1), timed(79.0, 80.0, 81.0, OTHER)),
    }
    made = compare_all("base", runs)
    assert made.names == ("a", "b")
    assert [[each.case for each in found] for found in made.differences] == [[CASE, OTHER]] * 2
    assert made.of("a")[1].verdict == "missing"
    assert made.geomean("a") == 1.0
    assert made.geomean("b") == pytest.approx((2.0 * 0.25) ** 0.5)
    assert [(name, each.case) for name, each in made.slower()] == [("b", OTHER)]


def test_a_case_that_only_another_run_has_is_missing_everywhere_else() -> None:
    runs = {"a": run_of(timed(1.0, 2.0, 3.0)), "b": run_of(), "c": run_of(timed(1.0, 2.0, 3.0, OTHER))}
    made = compare_all("a", runs)
    assert [[each.verdict for each in found] for found in made.differences] == [["missing"] * 2] * 2
    assert made.geomean("b") is None


def test_slower_by_a_share_needs_the_whole_interval() -> None:
    made = compare_all("a", {"a": run_of(timed(9.9, 10.0, 10.1)), "b": run_of(timed(10.9, 11.0, 11.1))})
    low = 10.9 / 10.1 - 1
    assert [len(made.slower(by)) for by in (0.0, low - 1e-3, low + 1e-3)] == [1, 1, 0]
    assert made.slower() == made.slower(0.0)
    for share in (-1, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"found {share}"):
            made.slower(share)


@one_test(
    ("peak", "told"),
    [(23.9e9, True), (16.2e9, True), (16.1e9, False), (14.7e9, False), (14.6e9, True)],
)
def test_copies_of_other_speeds_are_told(peak: float, told: bool) -> None:
    def with_peak(bandwidth: float) -> Run:
        run = run_of(timed(9.0, 10.0, 11.0))
        copies = Limits((StreamPoint(10**9, 10**9, 2e9 / bandwidth, "memcpy", is_copy=True),))
        return replace(run, header=replace(run.header, limits=copies))

    notes = mismatches(with_peak(15.4e9), with_peak(peak))
    assert [note.split(",")[0] for note in notes] == ["the best copies differ: 15.4 GB/s in the reference"] * told
    assert not told or f"{peak / 1e9:.1f} GB/s in the run ({peak / 15.4e9:.2f}x)" in notes[0]
