"""The rule about what is known of the machine's noise."""

from __future__ import annotations

from collections.abc import Callable

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Margin
from harness.gate.rules import calibration, slower
from harness.model import Case


def test_cases_that_were_never_calibrated_are_counted(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    known = evidence(of=case(n=1), margin=Margin(0.01, 0.002))
    control = evidence(of=case("memcpy", op="copy"), control=True)
    undecided = evidence(None, of=case(n=2))
    [finding] = calibration.judge(Evidence("main", (), (known, evidence(), control, undecided)))
    assert finding.severity == "note"
    assert finding.message.startswith("1 of 2 cases have no measured noise: fewer than 5 blocks")
    # What is assumed of them, and what follows from that.
    assert "assumed to have a standard deviation of 0.40%" in finding.message
    assert finding.message.endswith("a case fails if it lost more than 1.00%")
    # The largest of all such losses is told.
    margins = (Margin(0.02), Margin(0.03), Margin(0.01))
    cases = tuple(evidence(of=case(n=n), margin=margin) for n, margin in enumerate(margins, 1))
    [finding] = calibration.judge(Evidence("main", (), cases))
    assert finding.message.endswith("a case fails if it lost more than 3.00%")


def test_a_waiver_or_a_machine_that_is_too_noisy_is_no_margin_that_noise_has_raised(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    margins = (Margin(0.01, 0.005, 0.009, waived=0.03), Margin(0.01, 0.05, 0.08))
    cases = tuple(evidence(of=case(n=n), margin=margin) for n, margin in enumerate(margins, 1))
    assert not [f for f in calibration.judge(Evidence("main", (), cases)) if f.severity == "note"]


def test_margins_that_noise_has_raised_are_told_with_the_largest(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    noise = (0.002, 0.013, 0.017)
    cases = tuple(evidence(of=case(n=n), margin=Margin(0.01, floor)) for n, floor in enumerate(noise, 1))
    [finding] = calibration.judge(Evidence("main", (), cases))
    assert finding.severity == "note"
    assert finding.message.startswith("the noise of 2 of 3 cases lets losses pass that are larger than the 1.00% asked")
    assert finding.message.endswith(f"up to 1.70% in {cases[2].case.id}")
    assert not list(calibration.judge(Evidence("main", (), cases[:1])))


def test_a_case_that_is_too_noisy_is_undecided_and_says_how_to_accept_it(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    noisy = Margin(0.01, 0.05013)
    cases = tuple(
        evidence(outcome, of=case(n=n), margin=noisy)
        for n, outcome in enumerate(("inconclusive", "regressed", "improved"), 1)
    )
    control = evidence("inconclusive", of=case("memcpy", op="copy"), margin=noisy, control=True)
    about = Evidence("main", (), (*cases, control))
    [finding] = calibration.judge(about)
    assert (finding.severity, finding.case) == ("undecided", cases[0].case)
    assert finding.message.startswith("this machine is too noisy: the noise of this case is 5.01%")
    assert "2.00% or less" in finding.message
    assert finding.advice.endswith("accept it with --margin 2.51%")
    assert not Margin(0.0251, 0.05013).too_noisy
    # One reason is enough: more pairs wouldn't help.
    assert [found.severity for found in slower.judge(about)] == ["failure", "note"]
