"""The rule about the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.gate import Evidence, findings
from harness.gate.records import CaseEvidence, Finding, Outcome, Side
from harness.gate.rules import environment
from harness.model import Case, Expectation, Measurement, Scenario, Warning

PASSES = ("ok", "improved")
THROTTLED = Warning("throttled", "the device lowered its clocks: power cap", "let it cool")


def of_the_machine(evidence: Evidence) -> list[Finding]:
    """What this rule finds, given what all rules find."""
    return [finding for finding in findings(evidence) if finding.rule == "environment"]


@pytest.mark.parametrize(
    ("control", "others", "severity"),
    [
        ("regressed", ["regressed", "regressed", "ok"], "environment"),
        ("regressed", ["regressed", "ok"], "environment"),
        ("regressed", ["regressed", "ok", "ok"], "note"),
        ("regressed", ["ok", "ok"], "note"),
        ("regressed", [], "note"),
        ("inconclusive", ["regressed", "regressed"], None),
        ("ok", ["regressed", "regressed"], None),
        ("improved", ["ok", "ok"], "environment"),
        ("improved", ["improved", "regressed"], "environment"),
        ("improved", ["ok", "regressed", "inconclusive"], "note"),
        ("improved", [], "note"),
    ],
)
def test_a_copy_that_changes_while_the_rest_slows_down_or_passes_means_that_the_machine_moved(
    evidence: Callable[..., CaseEvidence],
    case: Callable[..., Case],
    control: Outcome,
    others: list[Outcome],
    severity: str | None,
) -> None:
    cases = [evidence(control, of=case("memcpy", op="copy"), control=True)]
    cases += [evidence(outcome, of=case(n=n)) for n, outcome in enumerate(others, 1)]
    found = of_the_machine(Evidence("main", (), tuple(cases)))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    assert ["the machine changed" in finding.message for finding in found] == (
        [severity == "environment"] if severity else []
    )


@pytest.mark.parametrize("outcome", ["regressed", "improved"])
def test_of_several_copies_that_change_the_first_is_named(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case], outcome: Outcome
) -> None:
    cases = tuple(evidence(outcome, of=case("memcpy", op="copy", n=n), control=True) for n in (1, 2))
    [found] = of_the_machine(Evidence("main", (), cases))
    assert found.case == cases[0].case


@pytest.mark.parametrize(
    ("outcome", "before", "after", "severity"),
    [
        ("ok", 0, 4, "note"),
        ("regressed", 0, 2, "environment"),
        ("regressed", 2, 2, "note"),
        ("regressed", 2, 3, "note"),
        ("regressed", 3, 0, "note"),
        ("ok", 3, 0, "environment"),
        ("improved", 3, 0, "environment"),
        ("improved", 3, 1, "note"),
        ("ok", 1, 0, "note"),
        ("ok", 4, 4, "note"),
        ("inconclusive", 2, 0, "environment"),
        ("inconclusive", 0, 0, None),
    ],
)
def test_lowered_clocks_make_a_verdict_invalid_that_rests_on_them(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    outcome: Outcome,
    before: int,
    after: int,
    severity: str | None,
) -> None:
    def side(throttled: int) -> tuple[Measurement, ...]:
        return tuple(measured(warnings=(THROTTLED,) if index < throttled else ()) for index in range(4))

    cases = (evidence(outcome, loss=0.05, base=side(before), now=side(after)),)
    found = of_the_machine(Evidence("main", (), cases))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    if found:
        assert found[0].message.endswith("a loss may be hidden") == (severity == "environment" and outcome in PASSES)
        assert f"{before} of 4 processes of the base, {after} of 4 of now" in found[0].message


@pytest.mark.parametrize(("outcome", "severity"), [("ok", "note"), ("regressed", "environment")])
def test_another_process_that_came_later_makes_a_loss_invalid(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement], outcome: Outcome, severity: str
) -> None:
    """Nobody shared the device at the beginning; a process of the working tree's side saw another one on it."""
    shared = Warning("shared", "1 other process computed on the device meanwhile", "end it")
    now = tuple(measured(warnings=(shared,) if index < 2 else ()) for index in range(4))
    [found] = of_the_machine(Evidence("main", (), (evidence(outcome, loss=0.05, now=now),)))
    assert (found.severity, found.advice) == (severity, "end what else runs on the device, and run the gate again")
    assert found.message.startswith("1 other process computed on the device meanwhile (0 of 4")


@pytest.mark.parametrize(("throttled", "severity"), [(3, "note"), (4, "environment")])
def test_a_floor_rests_on_lowered_clocks_only_where_all_processes_had_them(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    throttled: int,
    severity: str,
) -> None:
    now = tuple(measured(warnings=(THROTTLED,) if index < throttled else ()) for index in range(4))
    found = evidence("ok", now=now)
    floor = Expectation("tuned", "bandwidth", 1e15)
    scenario = Scenario("prelu", "t", "prelu", (found.case.id,), expect=(floor,))
    [finding] = of_the_machine(Evidence("main", (scenario,), (found,)))
    assert finding.severity == severity


def test_a_control_that_was_measured_at_lower_clocks_hides_nothing(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    found = evidence("ok", base=(measured(warnings=(THROTTLED,)),) * 4, control=True)
    assert [finding.severity for finding in of_the_machine(Evidence("main", (), (found,)))] == ["note"]


def test_a_machine_that_measures_nothing_does_not_pass(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement], case: Callable[..., Case]
) -> None:
    dead = (measured(status="crashed", error="RuntimeError: no device"),) * 3
    cases = evidence(None, base=dead, now=dead, pairs=()), evidence(None, of=case(n=2), base=(), pairs=())
    [finding] = environment.judge(Evidence("main", (), cases))
    assert (finding.severity, finding.case) == ("environment", None)
    alive = evidence("ok", of=case(n=3))
    assert not list(environment.judge(Evidence("main", (), (*cases, alive))))
    # Only new cases: there is nothing that could have become slower.
    assert not list(environment.judge(Evidence("main", (), cases[1:])))


@pytest.mark.parametrize(("outcome", "severity"), [("ok", "note"), ("regressed", "environment")])
def test_a_shared_device_counts_where_something_fails(
    evidence: Callable[..., CaseEvidence], outcome: Outcome, severity: str
) -> None:
    [finding] = of_the_machine(Evidence("main", (), (evidence(outcome),), shared="2 other processes on the GPU"))
    assert finding.severity == severity
    assert "2 other processes on the GPU" in finding.message


@pytest.mark.parametrize(
    ("rests_on", "throttled", "severity"),
    [
        ((), {"base": 0, "now": 4}, "note"),
        (("now",), {"base": 0, "now": 3}, "note"),
        (("now",), {"base": 4, "now": 4}, "environment"),
        (("base", "now"), {"base": 4, "now": 4}, "note"),
        (("base", "now"), {"base": 0, "now": 3}, "environment"),
    ],
)
def test_what_a_finding_rests_on_decides_whichever_rule_made_it(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    rests_on: tuple[Side, ...],
    throttled: dict[Side, int],
    severity: str,
) -> None:
    sides = {
        side: tuple(measured(warnings=(THROTTLED,) if index < count else ()) for index in range(4))
        for side, count in throttled.items()
    }
    found = evidence("ok", **sides)
    failure = Finding("a rule of tomorrow", "failure", "too warm", case=found.case, rests_on=rests_on)
    [finding] = environment.review(Evidence("main", (), (found,)), [failure])
    assert finding.severity == severity
    [shared] = environment.review(Evidence("main", (), (), shared="1 other process"), [failure])
    assert shared.severity == ("environment" if rests_on else "note")


def test_an_error_of_the_code_on_both_sides_is_not_the_machine_s(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement], case: Callable[..., Case]
) -> None:
    """CI tries again where the machine is the reason, and would find the same. One case may show the machine."""
    text = "ModuleNotFoundError: No module named 'kernels' (mine.py:3 in plain: import kernels)"
    lacking = (measured(status="crashed", error=text),) * 3
    dead = (measured(status="crashed", error="RuntimeError: no device"),) * 3
    cases = evidence(None, base=lacking, now=lacking, pairs=()), evidence(None, of=case(n=2), base=dead, now=dead)
    assert not list(environment.judge(Evidence("main", (), cases[:1])))
    assert [f.severity for f in findings(Evidence("main", (), cases[:1]))] == ["undecided"]
    [finding] = environment.judge(Evidence("main", (), cases))
    assert finding.severity == "environment"
