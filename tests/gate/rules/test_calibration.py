"""The rule about what is known of the machine's noise."""

from __future__ import annotations

from collections.abc import Callable

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Margin
from harness.gate.rules import calibration
from harness.model import Case


def test_cases_that_were_never_calibrated_are_counted(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    known = evidence(of=case(n=1), margin=Margin(0.01, 0.002))
    control = evidence(of=case("memcpy", op="copy"), control=True)
    undecided = evidence(None, of=case(n=2))
    [finding] = calibration.judge(Evidence("main", (), (known, evidence(), control, undecided)))
    assert finding.severity == "note"
    assert finding.message.startswith("1 of 2 cases have no noise floor")


def test_margins_that_noise_has_raised_are_told_with_the_largest(
    evidence: Callable[..., CaseEvidence], case: Callable[..., Case]
) -> None:
    noise = (0.002, 0.03, 0.07)
    cases = tuple(evidence(of=case(n=n), margin=Margin(0.01, floor)) for n, floor in enumerate(noise, 1))
    [finding] = calibration.judge(Evidence("main", (), cases))
    assert finding.severity == "note"
    assert finding.message.startswith("the noise of 2 of 3 cases lets losses pass that are larger than the 1.00% asked")
    assert finding.message.endswith(f"up to 7.00% in {cases[2].case.id}")
    assert not list(calibration.judge(Evidence("main", (), cases[:1])))
