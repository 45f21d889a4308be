"""One verdict of what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judge import Asked
from harness.judge.verdict import Ruling, ceiling_is_wrong, declines
from harness.model import Case, Limits, Measurement, Run, Work

CASE = Case("judged", "candidate", "float32", (("N", 1024),), device="cpu")
RULING = Ruling(Asked(Path("mine.py"), "cpu", 1), "", ())


@pytest.mark.parametrize("status", ["wrong", "implausible", "crashed", "timeout", "out_of_memory", "unsupported"])
def test_a_candidate_without_a_time_fails(status, header) -> None:
    found = RULING.of_run(Run(header, (Measurement(CASE, status, error="why"),)), [], None)
    assert (found.verdict, found.code) == (status, 5)
    assert found.line == f"{status.replace('_', ' ')}: why (judged/candidate/float32/N1024)"


@pytest.mark.parametrize("status", ["wrong", "crashed", "timeout"])
def test_a_failed_check_ends_it(status) -> None:
    found = RULING.of_checks([("given", Measurement(CASE, "ok")), ("unseen", Measurement(CASE, status, error="why"))])
    assert (found.verdict, found.code, len(found.checked)) == (status, 5, 2)


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


def test_bounds_are_the_ends_of_both_intervals(header) -> None:
    spread = (timed("eager", 8, 3.0, 4.0, 5.0), timed("candidate", 8, 1.0, 2.0, 4.0))
    [one] = RULING.of_run(Run(header, spread), [], None).timed
    assert (one.speedup, one.speedup_low, one.speedup_high) == (2.0, 3.0 / 4.0, 5.0 / 1.0)


def test_without_a_baseline_there_is_nothing_to_compare_with(header) -> None:
    failed = Measurement(Case("judged", "eager", "float32", (("N", 8),), device="cpu"), "crashed", error="no")
    found = RULING.of_run(Run(header, (failed, timed("candidate", 8, 1.0))), [], None)
    assert found.line == "right, no time of torch to compare with, no ceiling is known"
    assert found.timed[0].missing == {"eager": "crashed: no"}


@pytest.mark.parametrize(
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


def test_more_than_the_machine_can_do_stands_in_the_line(header, monkeypatch) -> None:
    from dataclasses import replace

    from harness.model import StreamPoint

    points = tuple(StreamPoint(size, size, size * 1.1, "memcpy", is_copy=True) for size in (2**2, 2**10))
    run = Run(replace(header, limits=Limits(points)), (timed("eager", 8, 64.0), timed("candidate", 8, 32.0)))
    assert "110% of the ceiling (more than this machine can do: see below)" in RULING.of_run(run, [], None).line
