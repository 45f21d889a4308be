"""One verdict of what was found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.judge import Asked, Calls, page
from harness.judge.records import IN_PARTS, STRIDES, Checked, Sheet
from harness.judge.verdict import Ruling, ceiling_is_wrong, declines
from harness.model import Case, Header, Limits, Measurement, Run, StreamPoint, Warning, Work
from harness.runner import judged
from tests.one_test import one_test

CASE = Case("judged", "candidate", "float32", (("N", 1024),), device="cpu")
RULING = Ruling(Asked(Path("mine.py"), "cpu", 1), "", ())


@one_test("status", ["wrong", "implausible", "crashed", "timeout", "out_of_memory", "unsupported"])
def test_a_candidate_without_a_time_fails(status, header) -> None:
    found = RULING.of_run(Run(header, (Measurement(CASE, status, error="why"),)), [], None)
    assert (found.verdict, found.code) == (status, 5)
    assert found.line == f"{status.replace('_', ' ')}: why (judged/candidate/float32/N1024)"


@pytest.mark.parametrize("status", ["wrong", "crashed", "timeout"])
def test_a_failed_check_ends_it(status) -> None:
    found = RULING.of_checks([("given", Measurement(CASE, "ok")), ("unseen", Measurement(CASE, status, error="why"))])
    assert (found.verdict, found.code, len(found.checked)) == (status, 5, 2)


def test_a_candidate_that_cannot_run_at_the_given_sizes_is_told_before_torch_is_timed() -> None:
    found = RULING.of_checks([("given", Measurement(CASE, "unsupported", error="Triton isn't installed"))])
    assert found
    assert found.line == "unsupported: Triton isn't installed (judged/candidate/float32/N1024)"
    right = ("given", Measurement(CASE, "ok"))
    for kind in ("unseen", "tested"):
        assert RULING.of_checks([right, (kind, Measurement(CASE, "unsupported", error="why"))]) is None


def timed(variant: str, n: int, *samples: float) -> Measurement:
    case = Case("judged", variant, "float32", (("N", n),), device="cpu")
    return Measurement(case, "ok", samples=samples * 8, work=Work(4 * n, 4 * n), timer="host")


def test_several_cases_have_a_geometric_mean(header) -> None:
    measured = [timed("eager", 8, 4.0), timed("compile", 8, 2.0), timed("eager", 16, 8.0), timed("compile", 16, 9.0)]
    found = RULING.of_run(Run(header, (*measured, timed("candidate", 8, 1.0), timed("candidate", 16, 1.0))), [], None)
    assert [(one.best, one.speedup) for one in found.timed] == [("compile", 2.0), ("eager", 8.0)]
    assert found.speedup == pytest.approx(4.0)
    assert found.line == (
        "right, 4.00x [4.00, 4.00] torch at its best over 2 cases (geometric mean), no ceiling is known"
    )


def test_a_reference_that_torch_compiles_in_parts_is_told_of_once(header) -> None:
    """Other warnings of torch's times say nothing of the candidate."""
    found = (Warning(IN_PARTS, "in two"), Warning("noisy", "wide"))
    baselines = [replace(timed(name, 8, 2.0), warnings=found) for name in ("compile", "compile_autotune")]
    candidate = replace(timed("candidate", 8, 1.0), warnings=(Warning("few-sets", "three"),))
    [one] = RULING.of_run(Run(header, (*baselines, candidate)), [], None).timed
    assert one.warnings == ("few-sets: three", "in-parts: in two")


def test_bounds_are_the_ends_of_both_intervals(header) -> None:
    spread = (timed("eager", 8, 3.0, 4.0, 5.0), timed("candidate", 8, 1.0, 2.0, 4.0))
    [one] = RULING.of_run(Run(header, spread), [], None).timed
    assert (one.speedup, one.speedup_low, one.speedup_high) == (2.0, 3.0 / 4.0, 5.0 / 1.0)
    assert (one.time, one.low, one.high) == (2.0, 1.0, 4.0)


def test_without_a_baseline_there_is_nothing_to_compare_with(header) -> None:
    failed = Measurement(Case("judged", "eager", "float32", (("N", 8),), device="cpu"), "crashed", error="no")
    found = RULING.of_run(Run(header, (failed, timed("candidate", 8, 1.0))), [], None)
    assert found.line == "right, no time of torch to compare with, no ceiling is known"
    assert found.timed[0].missing == {"eager": "crashed: no"}


@one_test(
    ("status", "error", "declined"),
    [
        ("crashed", "ValueError: too long", True),
        ("crashed", "NotImplementedError", True),
        ("crashed", "AssertionError: x", True),
        ("crashed", "RuntimeError: CUDA error: an illegal memory access", False),
        ("crashed", "the process was killed: ValueError", False),
        ("unsupported", "rows of more than 4", True),
        ("wrong", "ValueError", False),
        ("timeout", None, False),
    ],
)
def test_how_a_size_is_declined(status, error, declined) -> None:
    assert declines(Measurement(CASE, status, error=error)) is declined


def test_a_ceiling_that_torch_beats_is_wrong(header) -> None:
    eager = Case("judged", "eager", "float32", (("N", 8),), device="cpu")
    assert ceiling_is_wrong(Run(header, (Measurement(eager, "implausible"), Measurement(CASE, "implausible"))))
    assert not ceiling_is_wrong(Run(header, (timed("eager", 8, 1.0), Measurement(CASE, "implausible"))))


def test_what_is_faster_than_the_ceiling_has_no_share_of_it_and_the_warning_says_why(header) -> None:
    """As on a processor whose cache is larger than the system tells."""
    own = judged(timed("candidate", 8, 32.0), limited(header).limits)
    found = RULING.of_run(Run(limited(header), (timed("eager", 8, 64.0), own)), [], None)
    assert found.line.endswith(", faster than the ceiling, so the ceiling is wrong there (see below)")
    [warning] = found.timed[0].warnings
    assert "110.0% of the ceiling" in warning
    assert "the data is still in the cache" in warning
    text = page.text(found)
    assert "of the ceiling: no share, since it is faster than the ceiling" in text
    assert warning in text


def limited(header: Header) -> Header:
    """A machine that takes 1.1 seconds to read and write a byte."""
    points = tuple(StreamPoint(size, size, size * 1.1, "memcpy", is_copy=True) for size in (2**2, 2**10))
    return replace(header, limits=Limits(points))


def test_the_line_has_the_least_and_the_greatest_share_of_the_ceiling(header):
    both = (timed("candidate", 8, 64.0), timed("candidate", 16, 64.0))
    line = RULING.of_run(Run(limited(header), both), [], None).line
    assert line.endswith(", faster than the ceiling in 1 of 2 cases, so the ceiling is wrong there (see below)")
    alike = (timed("candidate", 8, 64.0), timed("candidate", 16, 128.0))
    assert RULING.of_run(Run(limited(header), alike), [], None).line.endswith(", 55% of the ceiling")
    apart = (timed("candidate", 8, 128.0), timed("candidate", 16, 128.0))
    assert RULING.of_run(Run(limited(header), apart), [], None).line.endswith(", 28% to 55% of the ceiling")
    assert [one.of_ceiling for one in RULING.of_run(Run(limited(header), both), [], None).timed] == [
        pytest.approx(0.55), pytest.approx(1.1),
    ]  # fmt: skip


def test_a_case_says_why_it_is_not_faster(header):
    [one] = RULING.of_run(Run(limited(header), (timed("candidate", 8, 64.0),)), [], None).timed
    assert "ceiling" in one.reason


def test_a_single_case_is_compared_with_the_fastest_baseline_by_its_name(header):
    measured = (timed("eager", 8, 4.0), timed("compile", 8, 2.0), timed("candidate", 8, 1.0))
    found = RULING.of_run(Run(header, measured), [], None)
    assert found.line == "right, 2.00x [2.00, 2.00] torch.compile, no ceiling is known"


def test_where_one_case_has_no_baseline_there_is_no_mean(header):
    measured = (timed("eager", 8, 4.0), timed("candidate", 8, 1.0), timed("candidate", 16, 1.0))
    found = RULING.of_run(Run(header, measured), [], None)
    assert (found.speedup, found.line) == (None, "right, no time of torch to compare with, no ceiling is known")


def few(variant: str, n: int, seconds: float) -> Measurement:
    """A case with one sample, so without an interval."""
    return replace(timed(variant, n, seconds), samples=(seconds,))


@pytest.mark.parametrize(
    ("torchs", "own"), [(timed, few), (few, timed), (few, few)], ids=["candidate's", "torch's", "both"]
)
def test_without_an_interval_there_are_no_bounds(header, torchs, own):
    measured = (torchs("eager", 8, 4.0), own("candidate", 8, 2.0))
    found = RULING.of_run(Run(header, measured), [], None)
    [one] = found.timed
    assert (one.speedup, one.speedup_low, one.speedup_high) == (2.0, None, None)
    assert (one.low, one.high) == ((None, None) if own is few else (2.0, 2.0))
    assert found.line == "right, 2.00x torch, no ceiling is known"


@pytest.mark.parametrize(("limit", "code"), [(1.0, 0), (1.25, 0), (1.26, 1)])
def test_only_what_is_surely_slower_than_asked_for_fails(header, limit, code):
    """The upper bound of the speed-up is 1.25."""
    ruling = Ruling(replace(RULING.asked, at_least=limit), "", ())
    spread = (timed("eager", 8, 3.0, 4.0, 5.0), timed("candidate", 8, 4.0))
    found = ruling.of_run(Run(header, spread), [], None)
    assert found.code == code
    assert found.line.endswith(f"; slower than --at-least {limit:g}x") == bool(code)


def test_what_can_not_be_compared_is_not_as_fast_as_asked_for(header):
    ruling = Ruling(replace(RULING.asked, at_least=0.1), "", ())
    assert ruling.of_run(Run(header, (timed("candidate", 8, 1.0),)), [], None).code == 1
    assert RULING.of_run(Run(header, (timed("candidate", 8, 1.0),)), [], None).code == 0


def test_a_case_that_failed_is_told_before_one_that_is_unsupported(header):
    other = Measurement(replace(CASE, shape=(("N", 8),)), "wrong", error="off by 1")
    found = RULING.of_run(Run(header, (Measurement(CASE, "unsupported", error="no"), other)), [], None)
    assert found.line == "wrong: off by 1 (judged/candidate/float32/N8)"


SHEET = Sheet("kernelbench", "mine.py", "folder/theirs.py", "", "cpu", "float32", 1, "judged", notes=("a note",))


def test_a_judgement_names_its_reference_and_what_can_not_be_promised():
    found = replace(RULING, sheet=SHEET).ended("crashed", "why")
    assert (found.form, found.reference, found.notes) == ("kernelbench", "theirs.py", ("a note",))
    assert replace(RULING, sheet=replace(SHEET, form="ops", op="softmax")).ended("wrong", "").reference == "op softmax"
    assert "Python can't hold code that wants to hide" in found.unpromised[0]
    isolated = Ruling(replace(RULING.asked, isolated=True), "", ()).ended("crashed", "why")
    assert "a kernel that writes out of its bounds" in isolated.unpromised[0]


def test_the_line_says_what_a_reader_must_know_of_a_right_candidate(header):
    def line(ruling: Ruling = RULING, warnings: tuple[Warning, ...] = (), calls: Calls | None = None) -> str:
        measured = replace(timed("candidate", 8, 1.0), warnings=warnings)
        return ruling.of_run(Run(header, (measured,)), [], calls).line.removeprefix(line_of_one)

    line_of_one = RULING.of_run(Run(header, (timed("candidate", 8, 1.0),)), [], None).line
    assert line(calls=Calls(("aten.mm",), (), True)) == "; it only calls torch"
    assert not line(calls=Calls(("aten.mm",)))
    assert line(replace(RULING, sheet=replace(SHEET, is_constant=True))) == (
        "; the reference gives the same for other inputs"
    )
    assert not line(replace(RULING, sheet=SHEET))
    assert line(warnings=(Warning("noisy", "wide"), Warning(STRIDES, "y0 has others"))) == (
        "; its outputs lie in memory in another order than the reference's"
    )
    assert not line(warnings=(Warning("noisy", "wide"),))


def test_sizes_that_a_candidate_declines(header):
    declined, run = Measurement(CASE, "unsupported", error="no"), Run(header, (timed("candidate", 8, 1.0),))
    right = Measurement(CASE, "ok")
    said = "; it declines all sizes but the given ones"
    found = RULING.of_run(run, [("tested", right), ("unseen", declined), ("unseen", declined)], None)
    assert found.line.endswith(said)
    assert [one.status for one in found.checked] == ["ok", "declined", "declined"]
    assert found.checked[1] == Checked(CASE.id, "declined", "no", "unseen")
    for checked in ([("unseen", declined), ("unseen", right)], [("given", right)], [("tested", declined)]):
        assert not RULING.of_run(run, checked, None).line.endswith(said)
    assert RULING.of_run(run, [("given", declined)], None).checked[0].status == "unsupported"
