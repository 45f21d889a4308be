"""Rule: where the machine changed, lowered its clocks or was shared, a loss says nothing about the code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.gate.ended import is_of_code
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding, Outcome, Severity
from harness.model import Case, Measurement

_ALONE = "end what else runs on the device, and run the gate again"
_PASSES: tuple[Outcome, ...] = ("ok", "improved")
_DISTURBANCES = {
    "throttled": "let the device cool, check its power limit and what else runs on it, and run the gate again",
    "shared": _ALONE,
}
"""Codes of warnings that say that the machine made a time longer, and what to do."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Findings where nothing could be measured, and where the library's copy changed."""
    yield from _nothing_measured(evidence)
    yield from _moved(evidence)


def review(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
    """A finding about each bad state of the machine: 'environment' if other findings rest on its times, else 'note'."""
    resting = [found for found in findings if found.rests_on and found.severity in ("failure", "undecided")]
    if evidence.shared:
        severity: Severity = "environment" if resting else "note"
        yield Finding("environment", severity, f"the device was shared: {evidence.shared}", _ALONE)
    for found in evidence.cases:
        about = [finding for finding in resting if finding.case == found.case]
        for code, advice in _DISTURBANCES.items():
            yield from _disturbed(found, about, code, advice)


def _nothing_measured(evidence: Evidence) -> Iterator[Finding]:
    """A finding if no case has a time with either code: otherwise the gate would pass."""
    known = [found for found in evidence.cases if found.base and found.now]
    # Nobody is to try that again on this machine: the rule `uncompared` leaves it undecided.
    if known and all(is_of_code((*found.base, *found.now)) for found in known):
        return
    if known and not any(m.time is not None for found in known for m in (*found.base, *found.now)):
        message = "no case that both sides have could be measured, on either side"
        yield Finding("environment", "environment", message, "run 'harness env', then the scenario: harness run")


def _moved(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each way in which the library's copy changed, which no change of the code can cause.

    The machine is why if the same may be true of at least half of the other cases: they got slower, too; or they
    passed, and a loss would pass where the machine got faster.
    """
    outcomes = [(found, found.decision.outcome) for found in evidence.cases if found.decision]
    others = [outcome for found, outcome in outcomes if not found.control]
    slow, fast = (
        [found.case for found, outcome in outcomes if found.control and outcome == wanted]
        for wanted in ("regressed", "improved")
    )
    if slow:
        text = "the library's copy got slower"
        lost = others.count("regressed")
        graver = f"{text} together with {lost} of {len(others)} cases: the machine changed, not the code"
        yield _control(slow[0], _most(lost, others), graver, f"{text}, which no change of the code can cause")
    if fast:
        passed = sum(outcome in _PASSES for outcome in others)
        text = "the library's copy got faster, which no change of the code can cause"
        yield _control(fast[0], _most(passed, others), f"{text}: the machine changed, and a loss may be hidden", text)


def _most(count: int, others: Sequence[Outcome]) -> bool:
    return count > 0 and 2 * count >= len(others)


def _control(case: Case, grave: bool, graver: str, text: str) -> Finding:
    return Finding("environment", "environment" if grave else "note", graver if grave else text, _ALONE, case)


def _disturbed(found: CaseEvidence, findings: Sequence[Finding], code: str, advice: str) -> Iterator[Finding]:
    """A finding if times have a warning of this code; it is graver if the case's verdict rests on such times.

    Verdicts are what other rules found, and that the case passes: a base that was disturbed hides a loss.
    """
    before, after = _times_disturbed(found.base, code), _times_disturbed(found.now, code)
    if not before and not after:
        return
    passes = found.decision is not None and found.decision.outcome in _PASSES and not found.control
    hidden = passes and _clearly_more(before, after)
    rests = hidden or any(_rests(finding, found, before, after) for finding in findings)
    reasons = next(w.message for m in (*found.now, *found.base) for w in m.warnings if w.code == code)
    message = f"{reasons} ({before} of {len(found.base)} processes of the base, {after} of {len(found.now)} of now)"
    message += ": a loss may be hidden" if hidden else ""
    yield Finding("environment", "environment" if rests else "note", message, advice, found.case)


def _rests(finding: Finding, found: CaseEvidence, before: int, after: int) -> bool:
    """Whether a finding rests on disturbed times. before, after: processes of the base and of now that have such."""
    if finding.severity == "undecided":
        return True
    if finding.rests_on == ("now",):
        # If some processes weren't disturbed and show the same, that isn't the reason.
        return after == len(found.now)
    # If the base was disturbed about as often, both sides lost alike, and what is left is a loss of the code.
    return _clearly_more(after, before)


def _clearly_more(one: int, other: int) -> bool:
    """Whether a count is larger than another one by more than chance: the root of their sum."""
    return one - other > math.sqrt(one + other)


def _times_disturbed(measurements: Sequence[Measurement], code: str) -> int:
    return sum(any(warning.code == code for warning in m.warnings) for m in measurements)
