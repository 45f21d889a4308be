"""Rule: where the machine changed, lowered its clocks or was shared, a loss says nothing about the code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.gate._evidence import Evidence
from harness.gate.records import CaseEvidence, Finding, Severity
from harness.model import Measurement

_ALONE = "end what else runs on the device, and run the gate again"
_COOL = "let the device cool, check its power limit and what else runs on it, and run the gate again"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Findings where nothing could be measured, and where the library's copy got slower."""
    yield from _nothing_measured(evidence)
    yield from _moved(evidence)


def review(evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
    """A finding about each bad state of the machine: 'environment' if other findings rest on its times, else 'note'."""
    resting = [found for found in findings if found.rests_on and found.severity in ("failure", "undecided")]
    if evidence.shared:
        severity: Severity = "environment" if resting else "note"
        yield Finding("environment", severity, f"the device was shared: {evidence.shared}", _ALONE)
    for found in evidence.cases:
        yield from _throttled(found, [finding for finding in resting if finding.case == found.case])


def _nothing_measured(evidence: Evidence) -> Iterator[Finding]:
    """A finding if no case has a time with either code: otherwise such a gate would pass."""
    known = [found for found in evidence.cases if found.base and found.now]
    if known and not any(m.time is not None for found in known for m in (*found.base, *found.now)):
        message = "no case that both sides have could be measured, on either side"
        yield Finding("environment", "environment", message, "run 'harness env', then the scenario: harness run")


def _moved(evidence: Evidence) -> Iterator[Finding]:
    """A finding if the library's copy got slower. If at least half of the other cases did too, the machine is why."""
    decided = [found for found in evidence.cases if found.decision]
    slow = [found for found in decided if found.decision and found.decision.outcome == "regressed"]
    controls = [found for found in slow if found.control]
    others = [found for found in decided if not found.control]
    losers = [found for found in slow if not found.control]
    if not controls:
        return
    if losers and 2 * len(losers) >= len(others):
        message = (
            f"the library's copy got slower together with {len(losers)} of {len(others)} cases: the machine changed, "
            "not the code"
        )
        yield Finding("environment", "environment", message, _ALONE, controls[0].case)
    else:
        message = "the library's copy got slower, which no change of the code can cause"
        yield Finding("environment", "note", message, _ALONE, controls[0].case)


def _throttled(found: CaseEvidence, findings: Sequence[Finding]) -> Iterator[Finding]:
    """A finding if clocks were lowered; it is graver if what other rules found about the case rests on them."""
    before, after = _times_throttled(found.base), _times_throttled(found.now)
    if not before and not after:
        return
    rests = any(_rests(finding, found, before, after) for finding in findings)
    reasons = next(w.message for m in (*found.now, *found.base) for w in m.warnings if w.code == "throttled")
    message = f"{reasons} ({before} of {len(found.base)} processes of the base, {after} of {len(found.now)} of now)"
    yield Finding("environment", "environment" if rests else "note", message, _COOL, found.case)


def _rests(finding: Finding, found: CaseEvidence, before: int, after: int) -> bool:
    """Whether a finding rests on lowered clocks. before, after: processes of the base and of now that had them."""
    if finding.severity == "undecided":
        return True
    if finding.rests_on == ("now",):
        # If some processes ran at full clocks and show the same, lowered clocks aren't the reason.
        return after == len(found.now)
    # If the base had lowered clocks about as often, both sides lost alike, and what is left is a loss of the code.
    # Counts that differ by less than the root of their sum differ by chance.
    return after - before > math.sqrt(after + before)


def _times_throttled(measurements: Sequence[Measurement]) -> int:
    return sum(any(warning.code == "throttled" for warning in m.warnings) for m in measurements)
