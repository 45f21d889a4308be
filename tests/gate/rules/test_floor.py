"""The rule about floors that a scenario expects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness import metrics, units
from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.gate.rules import floor
from harness.model import Case, Expectation, Limits, Measurement, Scenario, StreamPoint, Work

N = 2**20
# 8 MiB in 1 ms at best.
LIMITS = Limits((StreamPoint(4 * N, 4 * N, 1e-3, "memcpy", is_copy=True),))
OF_CEILING = metrics.METRICS["of_ceiling"].title
Judge = Callable[..., list[Finding]]


@pytest.fixture
def judge(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> Judge:
    """Findings about prelu/tuned, measured in these seconds, and prelu/eager, in 2 ms."""

    def run(
        *floors: Expectation,
        seconds: tuple[float, ...] = (1.25e-3,),
        limits: Limits | None = LIMITS,
        over: dict[str, object] | None = None,
        measured_cases: int = 2,
        **fields: object,
    ) -> list[Finding]:
        tuned, eager, over = case("tuned"), case("eager"), over or {}
        scenario = Scenario("prelu", "PReLU", "prelu", (tuned.id, eager.id), expect=floors)
        cases = (
            evidence(of=tuned, now=tuple(measured(s, of=tuned, **fields) for s in seconds)),
            evidence(of=eager, now=(measured(2e-3, of=eager, **over),)),
        )
        return list(floor.judge(Evidence("main", (scenario,), cases[:measured_cases], limits, asked=(scenario,))))

    return run


@pytest.mark.parametrize(
    ("metric", "kept", "broken"),
    [
        ("of_ceiling", 0.79, 0.81),
        ("of_peak", 0.79, 0.81),
        ("speedup", 1.59, 1.61),
        ("bandwidth", 6.7e9, 6.72e9),
        ("flops", 0.79e9, 0.81e9),
        ("items", 0.79e6, 0.81e6),
    ],
)
def test_a_floor_of_each_metric(judge: Judge, metric: str, kept: float, broken: float) -> None:
    work = Work(4 * N, 4 * N, (("float32", 10**6),), items=1000)
    assert judge(Expectation("tuned", metric, kept), work=work) == []
    [finding] = judge(Expectation("tuned", metric, broken), work=work)
    assert (finding.severity, finding.case.variant) == ("failure", "tuned")
    assert finding.rests_on == ("now",)


def test_a_metric_from_outside_can_have_a_floor(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = metrics.Metric("calls", "calls a second", units.COUNT, lambda s: 1 / s.time, better="higher")
    monkeypatch.setitem(metrics.METRICS, "calls", calls)
    assert judge(Expectation("tuned", "calls", 799)) == []
    [finding] = judge(Expectation("tuned", "calls", 801))
    assert finding.message == "calls a second 800 at best, below the floor of 801 that the scenario expects"


def test_a_speed_up_is_over_the_slowest_process_of_the_baseline(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> None:
    tuned, eager = case("tuned"), case("eager")
    floor_ = Expectation("tuned", "speedup", 1.9)
    scenario = Scenario("prelu", "PReLU", "prelu", (tuned.id,), expect=(floor_,))
    slow = evidence(of=eager, now=(measured(1e-3, of=eager), measured(2e-3, of=eager)))
    cases = (evidence(of=tuned, now=(measured(1e-3, of=tuned),)), slow)
    assert not list(floor.judge(Evidence("main", (scenario,), cases)))
    quick = replace(slow, now=slow.now[:1])
    [finding] = floor.judge(Evidence("main", (scenario,), (cases[0], quick)))
    assert finding.message.startswith("speed-up over eager 1.00x at best, below the floor of 1.90x")


@pytest.mark.parametrize(("least", "failures"), [(0.79, 0), (0.81, 1)])
def test_scaling_efficiency_is_over_the_same_case_on_one_device(
    case: Callable[..., Case],
    measured: Callable[..., Measurement],
    evidence: Callable[..., CaseEvidence],
    least: float,
    failures: int,
) -> None:
    work = Work(items=1000)
    alone, four = case(), replace(case(), world=4)
    floor_ = Expectation("tuned", "efficiency", least, where="*/world=4")
    scenario = Scenario("prelu", "PReLU", "prelu", (alone.id, four.id), expect=(floor_,))
    cases = (
        evidence(of=alone, now=(measured(3.2e-3, of=alone, work=work),)),
        evidence(of=four, now=(measured(1e-3, of=four, work=work),)),
    )
    assert len(list(floor.judge(Evidence("main", (scenario,), cases)))) == failures


@pytest.mark.parametrize(("status", "severities"), [("unsupported", ["failure"]), ("crashed", ["undecided"])])
def test_only_what_needs_several_devices_is_compared_with_the_baseline_on_one(
    case: Callable[..., Case],
    measured: Callable[..., Measurement],
    evidence: Callable[..., CaseEvidence],
    status: str,
    severities: list[str],
) -> None:
    work = Work(items=1000)
    alone, four = case(), replace(case(), world=4)
    baseline = replace(alone, variant="eager")
    floor_ = Expectation("tuned", "efficiency", 0.9, where="*/world=4")
    scenario = Scenario("prelu", "PReLU", "prelu", (baseline.id, alone.id, four.id), baseline="eager", expect=(floor_,))
    cases = (
        evidence(of=baseline, now=(measured(3.2e-3, of=baseline, work=work),)),
        evidence(of=alone, now=(replace(measured(3.2e-3, of=alone, work=work), status=status, samples=()),)),
        evidence(of=four, now=(measured(1e-3, of=four, work=work),)),
    )
    found = floor.judge(Evidence("main", (scenario,), cases))
    assert [finding.severity for finding in found if finding.case == four] == severities


def test_a_case_that_some_processes_could_measure_on_one_device_is_compared_with_itself_there(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> None:
    work = Work(items=1000)
    alone, four = case(), replace(case(), world=4)
    baseline = replace(alone, variant="eager")
    floor_ = Expectation("tuned", "efficiency", 0.5, where="*/world=4")
    scenario = Scenario("prelu", "PReLU", "prelu", (baseline.id, alone.id, four.id), baseline="eager", expect=(floor_,))
    own = measured(1e-3, of=alone, work=work)
    cases = (
        evidence(of=baseline, now=(measured(3.2e-3, of=baseline, work=work),)),
        evidence(of=alone, now=(replace(own, status="unsupported", samples=()), own)),
        evidence(of=four, now=(measured(1e-3, of=four, work=work),)),
    )
    [finding] = floor.judge(Evidence("main", (scenario,), cases))
    assert finding.message.startswith("scaling efficiency 25.0% at best")


def test_a_case_on_one_device_has_no_scaling_efficiency(judge: Judge) -> None:
    work = Work(4 * N, 4 * N, items=1000)
    [finding] = judge(Expectation("tuned", "efficiency", 0.5), work=work)
    assert (finding.severity, finding.message) == (
        "undecided",
        "scaling efficiency: the floor of 50.0% can't be checked",
    )


def test_a_floor_of_scaling_whose_case_on_one_device_only_leaves_out_is_a_note(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> None:
    alone, four = case(), replace(case(), world=4)
    floor_ = Expectation("tuned", "efficiency", 0.5, where="*/world=4")
    scenario = Scenario("prelu", "PReLU", "prelu", (alone.id, four.id), expect=(floor_,))
    cases = (evidence(of=four, now=(measured(of=four, work=Work(items=1000)),)),)
    [left_out] = floor.judge(Evidence("main", (scenario,), cases, asked=(scenario,)))
    [unknown] = floor.judge(Evidence("main", (scenario,), cases))
    assert (left_out.severity, unknown.severity) == ("note", "undecided")


def test_a_floor_that_one_process_with_a_time_cannot_check_is_undecided(
    case: Callable[..., Case], measured: Callable[..., Measurement], evidence: Callable[..., CaseEvidence]
) -> None:
    tuned, floor_ = case("tuned"), Expectation("tuned", "of_ceiling", 0.9)
    scenario = Scenario("prelu", "PReLU", "prelu", (tuned.id,), expect=(floor_,))
    now = (measured(of=tuned), measured(of=tuned, status="crashed"))
    [finding] = floor.judge(Evidence("main", (scenario,), (evidence(of=tuned, now=now),)))
    assert finding.severity == "undecided"


def test_a_case_that_was_not_measured_now_is_left_to_another_rule(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence]
) -> None:
    known, unknown = case("tuned"), case("tuned", n=8)
    floor_ = Expectation("tuned", "of_ceiling", 0.5)
    scenario = Scenario("prelu", "PReLU", "prelu", (known.id, unknown.id), expect=(floor_,))
    assert not list(floor.judge(Evidence("main", (scenario,), (evidence(of=known, now=()),))))


def test_a_value_at_the_floor_is_enough(judge: Judge) -> None:
    assert judge(Expectation("tuned", "speedup", 2.0), seconds=(1e-3,)) == []


def test_one_process_on_the_right_side_is_enough(judge: Judge) -> None:
    assert judge(Expectation("tuned", "of_ceiling", 0.9), seconds=(1.25e-3, 1.1e-3)) == []
    [finding] = judge(Expectation("tuned", "of_ceiling", 0.9), seconds=(1.25e-3, 1.2e-3))
    assert finding.message == f"{OF_CEILING} 83.3% at best, below the floor of 90.0% that the scenario expects"


def test_the_first_floor_that_matches_counts(judge: Judge) -> None:
    strict = Expectation("tuned", "of_ceiling", 0.9, where="prelu/*/N1048576")
    lax = Expectation("tuned", "of_ceiling", 0.5)
    elsewhere = Expectation("tuned", "of_ceiling", 0.99, where="*/N8")
    assert judge(elsewhere, lax, strict) == []
    assert len(judge(elsewhere, strict, lax)) == 1


def test_a_floor_that_cannot_be_checked_is_no_evidence(judge: Judge) -> None:
    [finding] = judge(Expectation("tuned", "of_ceiling", 0.9), limits=None)
    assert (finding.severity, finding.rule) == ("undecided", "floor")
    assert finding.message == f"{OF_CEILING}: the floor of 90.0% can't be checked"
    [finding] = judge(Expectation("tuned", "of_tomorrow", 0.9))
    assert (finding.severity, "no metric of this harness has that name" in finding.message) == ("undecided", True)


def test_a_speed_up_over_a_baseline_that_failed_can_not_be_checked(judge: Judge) -> None:
    [finding] = judge(Expectation("tuned", "speedup", 1.5), over={"status": "wrong"})
    assert (finding.severity, finding.message) == (
        "undecided",
        "speed-up over eager: the floor of 1.50x can't be checked",
    )


def test_what_only_leaves_out_and_what_has_no_time_is_left_to_the_user_and_to_other_rules(judge: Judge) -> None:
    [left_out] = judge(Expectation("tuned", "speedup", 1.5), measured_cases=1)
    [never_ran] = judge(Expectation("tuned", "of_ceiling", 0.9), status="unsupported")
    assert (left_out.severity, never_ran.severity) == ("note", "note")


@pytest.mark.parametrize(("least", "kind"), [(0.79, None), (0.81, "failure")])
def test_what_needs_several_devices_is_compared_with_the_baseline_on_one(
    case: Callable[..., Case],
    measured: Callable[..., Measurement],
    evidence: Callable[..., CaseEvidence],
    least: float,
    kind: str | None,
) -> None:
    alone, two = case("eager"), replace(case("tuned"), world=2)
    work = Work(4 * N, 4 * N, items=1000)
    floor_ = Expectation("tuned", "efficiency", least)
    scenario = Scenario("prelu", "PReLU", "prelu", (alone.id, two.id), expect=(floor_,))
    cases = (
        evidence(of=alone, now=(measured(1e-3, of=alone, work=work),)),
        evidence(of=two, now=(measured(1.25e-3, of=two, work=replace(work, items=2000)),)),
    )
    found = list(floor.judge(Evidence("main", (scenario,), cases, None, asked=(scenario,))))
    assert [finding.severity for finding in found] == ([kind] if kind else [])
