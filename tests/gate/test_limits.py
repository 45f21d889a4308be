"""Which limits of the machine a gate run measures: only the limits that its floors are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from harness.gate import Evidence, two_codes, worktree
from harness.gate.case_lists import Cases
from harness.gate.records import CaseEvidence, Revision
from harness.gate.two_codes import Sides
from harness.gate.worktree import Checkout
from harness.limits import Needs
from harness.model import Case, Expectation, Limits, Machine, Measurement, Scenario, Work

NOW = Checkout(Revision("now", "0" * 40, False, "0" * 64), Path("/now"), (Path("/now/mine.py"),))
BASE = Checkout(Revision("base", "1" * 40, False, "1" * 64), Path("/base"), ())
LIMITS = Limits()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """The needs that processes were asked to measure."""
    told: list[Needs] = []

    class Fake:
        def __init__(self, device: str, plugins: Any, root: Path, digest: str, around: Any) -> None:
            assert (device, plugins, root, digest) == ("cpu", NOW.plugins, NOW.root, NOW.digest)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def limits(self, needs: Needs, report: Callable[[str, float], None]) -> Limits:
            told.append(needs)
            report("streams", 0.5)
            return LIMITS

    monkeypatch.setattr(worktree, "Workers", Fake)
    return told


@pytest.fixture
def sides(machine: Machine) -> Sides:
    class Observer:
        def note(self, text: str) -> None:
            assert text == "streams (50%)"

    return Sides({"base": BASE, "now": NOW}, machine, Cases((), {"base": (), "now": ()}), "", Observer())


def test_memory_is_measured_where_a_floor_is_over_it_and_peaks_and_links_where_the_work_needs_them(
    asked: list[Needs],
    sides: Sides,
    case: Callable[..., Case],
    measured: Callable[..., Measurement],
    evidence: Callable[..., CaseEvidence],
) -> None:
    plain, four = case(), replace(case(), world=4)
    multiplies = Work(8, 8, (("float16", 100), ("float32", 0)), sent=8)
    cases = (evidence(of=plain), evidence(of=four, now=(measured(of=four, work=multiplies),)))

    def limits(*floors: Expectation) -> Limits | None:
        scenario = Scenario("s", "t", "prelu", (plain.id, four.id), expect=floors)
        with sides.codes["now"].workers("cpu") as workers:
            return two_codes._limits(Evidence("main", (scenario,), cases), sides.observer, workers)

    assert limits() is None
    assert limits(Expectation("tuned", "bandwidth", 1.0)) is None
    assert limits(Expectation("eager", "of_ceiling", 0.9)) is None
    assert asked == []
    assert limits(Expectation("tuned", "of_peak", 0.9, where="*/N1048576")) is LIMITS
    assert limits(Expectation("tuned", "of_ceiling", 0.9)) is LIMITS
    assert asked == [Needs(), Needs(kinds=("float16",), worlds=(4,))]
