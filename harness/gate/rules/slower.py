"""Rule: a case slower than the base by more than its margin fails; one that can't be told is undecided."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.gate._evidence import Evidence
from harness.gate.records import TELL_MOST, CaseEvidence, Decision, Finding, share


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each case that isn't simply OK. Controls are the environment's: no change of ours slows them."""
    for found in evidence.cases:
        if found.decision and not found.control:
            yield from _judge(found, found.decision, evidence.base)


def _judge(found: CaseEvidence, decision: Decision, base: str) -> Iterator[Finding]:
    margin = units.percent(found.margin.value, 2)
    estimate = units.percent(abs(share(decision.estimate)), 2)
    bounds = f"{units.change(share(decision.low))} to {units.change(share(decision.high))}"
    what = f"{decision.pairs} pairs, {bounds}"
    match decision.outcome:
        case "regressed":
            message = f"{estimate} slower than {base} ({what}), more than the margin of {margin}"
            advice = f"look at what changed in {found.case.op}, or allow it with --margin"
            yield Finding("slower", "failure", message, advice, found.case)
        case "inconclusive":
            estimate = units.change(share(decision.estimate))
            message = f"{estimate} against {base} ({what}): may be more than the margin of {margin}, may be less"
            yield Finding("slower", "undecided", message, _more(decision), found.case)
        case "improved":
            yield Finding("slower", "note", f"{estimate} faster than {base} ({what})", "", found.case)


def _more(decision: Decision) -> str:
    """How to come to a decision."""
    count = decision.pairs_to_tell or TELL_MOST
    pairs = f"{count} or more" if count >= TELL_MOST else f"about {count}"
    return f"{pairs} pairs would tell (stored runs: --repeat); free the machine of other work, or raise --margin"
