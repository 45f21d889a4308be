"""Rule: a case that is slower than the base by more than its margin fails, unless the pairs don't decide it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness import units
from harness.gate.evidence import Evidence
from harness.gate.records import TELL_MOST, CaseEvidence, Decision, Finding, Side, share

_TIMES: tuple[Side, ...] = ("base", "now")
_FAR = 1.1
"""From so many times the time on, a share of the speed is easily misread, so the time is told as well."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each case that isn't OK. Controls have none: no change of ours can slow them down."""
    for found in evidence.cases:
        if found.decision and not found.control:
            yield from _judge(found, found.decision, evidence.base)


def _judge(found: CaseEvidence, decision: Decision, base: str) -> Iterator[Finding]:
    margin, failing = units.percent(found.margin.value, 2), units.percent(found.margin.failing, 2)
    limit = f"the waived {failing}" if found.margin.failing == found.margin.waived else f"the margin of {failing}"
    estimate = units.percent(abs(share(decision.estimate)), 2)
    bounds = f"{units.change(share(decision.low))} to {units.change(share(decision.high))}"
    what = f"{decision.pairs} pairs, {bounds}"
    match decision.outcome:
        case "regressed":
            times = math.exp(-decision.estimate)
            long = f", it takes {times:.2f} times as long" if times >= _FAR else ""
            message = f"{estimate} slower than {base}{long} ({what}), more than {limit}"
            advice = f"look at what changed in {found.case.op}; or allow it by a waiver in waivers.yaml or by --margin"
            yield Finding("slower", "failure", message, advice, found.case, _TIMES)
        # The rule `calibration` says why a case that is too noisy is undecided: more pairs wouldn't help.
        case "inconclusive" if not found.too_noisy:
            estimate = units.change(share(decision.estimate))
            fails = f", and fails from {failing} on" if found.margin.failing > found.margin.value else ""
            message = f"{estimate} against {base} ({what}): the loss may be more than the margin of {margin}, or less"
            message += fails
            yield Finding("slower", "undecided", message, _more(decision), found.case, _TIMES)
        case "improved":
            yield Finding("slower", "note", f"{estimate} faster than {base} ({what})", "", found.case, _TIMES)


def _more(decision: Decision) -> str:
    """What the user can do to get a decision."""
    count = decision.pairs_to_tell
    if count is None:
        return "pairs can't tell such a loss from noise: calibrate, end other work on the machine, or raise --margin"
    pairs = f"{count} or more" if count >= TELL_MOST else f"about {count}"
    return (
        f"{pairs} pairs would decide: give the same command with --resume FOLDER --pairs {count}, FOLDER being this "
        f"gate's (stored runs: measure each with --repeat {count}); or end other work on the machine, or raise --margin"
    )
