"""The rule about floors that a scenario expects."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.gate.rules import floor
from harness.model import Case, Ceilings, Expectation, Measurement, Scenario, StreamPoint

N = 2**20
# 8 MiB in 1 ms at best.
CEILINGS = Ceilings((StreamPoint(4 * N, 4 * N, 1e-3, "memcpy", is_copy=True),))
Judge = Callable[..., list[Finding]]


@pytest.fixture
def judge(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> Judge:
    """Findings about prelu/tuned, measured in these seconds, and prelu/eager, in 2 ms."""

    def run(
        *floors: Expectation, seconds: tuple[float, ...] = (1.25e-3,), ceilings: Ceilings | None = CEILINGS
    ) -> list[Finding]:
        tuned, eager = case("tuned"), case("eager")
        scenario = Scenario("prelu", "PReLU", "prelu", (tuned.id, eager.id), expect=floors)
        cases = (
            evidence(of=tuned, now=tuple(measured(s, of=tuned) for s in seconds)),
            evidence(of=eager, now=(measured(2e-3, of=eager),)),
        )
        return list(floor.judge(Evidence("main", (scenario,), cases, ceilings)))

    return run


@pytest.mark.parametrize(
    ("metric", "kept", "broken"),
    [
        ("of_ceiling", 0.79, 0.81),
        ("of_peak", 0.79, 0.81),
        ("speedup", 1.59, 1.61),
        ("bandwidth", 6.7e9, 6.72e9),
    ],
)
def test_a_floor_of_each_metric(judge: Judge, metric: str, kept: float, broken: float) -> None:
    assert judge(Expectation("tuned", metric, kept)) == []
    [finding] = judge(Expectation("tuned", metric, broken))
    assert (finding.severity, finding.case.variant) == ("failure", "tuned")


def test_one_process_on_the_right_side_is_enough(judge: Judge) -> None:
    assert judge(Expectation("tuned", "of_ceiling", 0.9), seconds=(1.25e-3, 1.1e-3)) == []
    [finding] = judge(Expectation("tuned", "of_ceiling", 0.9), seconds=(1.25e-3, 1.2e-3))
    assert finding.message == "of ceiling 83.3% at best, below the floor of 90.0% that the scenario expects"


def test_the_first_floor_that_matches_counts(judge: Judge) -> None:
    strict = Expectation("tuned", "of_ceiling", 0.9, where="prelu/*/N1048576")
    lax = Expectation("tuned", "of_ceiling", 0.5)
    elsewhere = Expectation("tuned", "of_ceiling", 0.99, where="*/N8")
    assert judge(elsewhere, lax, strict) == []
    assert len(judge(elsewhere, strict, lax)) == 1


def test_a_floor_that_cannot_be_held_is_a_note(judge: Judge) -> None:
    [finding] = judge(Expectation("tuned", "of_ceiling", 0.9), ceilings=None)
    assert finding.severity == "note"
