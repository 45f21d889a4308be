"""Rule: a loss that a waiver covers passes, and is told. So is a waiver that is new, has expired, or isn't needed.

A waiver raises the margin of its cases before anything is decided, so it covers times alone, up to its largest loss.
A waiver that expired or isn't needed makes a note, which changes no exit code: the times of the cases decide, and a
case whose waiver has expired fails by its own margin. A waiver that is new since the base makes a note, too: the
commit that loses may be the one that allows the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness import units
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Decision, Finding, Waiver, share
from harness.gate.waiving import waiver_of


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An accepted finding for each case that passes by its waiver, and notes: what is new, and what nothing needs."""
    needed: set[Waiver] = set()
    for found in evidence.cases:
        waiver = waiver_of(evidence.waivers, found.case.id, evidence.today)
        if waiver and found.decision and not found.control and _needs(found, found.decision):
            needed.add(waiver)
            if found.decision.outcome == "ok":
                yield _waived(found, found.decision, waiver, evidence.base)
    if evidence.unsure:
        yield Finding("waivers", "note", evidence.unsure, "read yourself what the change does to the file")
    for waiver in evidence.waivers:
        if waiver.new and waiver.until >= evidence.today:
            yield _new(waiver, evidence.base)
        # Where nothing was measured, nobody knows what is needed.
        if waiver not in needed and (evidence.cases or waiver.until < evidence.today):
            yield _idle(waiver, evidence)


def _needs(found: CaseEvidence, decision: Decision) -> bool:
    """Whether these pairs wouldn't let the case pass without the waiver."""
    return decision.low <= math.log1p(-found.margin.unwaived)


def _waived(found: CaseEvidence, decision: Decision, waiver: Waiver, base: str) -> Finding:
    change, most = units.change(share(decision.estimate)), units.percent(waiver.largest_loss, 2)
    bounds = f"{decision.pairs} pairs, {units.change(share(decision.low))} at worst"
    message = (
        f"{change} against {base} ({bounds}), waived: a loss of up to {most} passes until {waiver.until}, "
        f"since {waiver.reason} ({waiver.owner}, {waiver.place}{f', new since {base}' if waiver.new else ''})"
    )
    return Finding("waivers", "accepted", message, "", found.case, ("base", "now"))


def _new(waiver: Waiver, base: str) -> Finding:
    allowed = f"a loss of up to {units.percent(waiver.largest_loss, 2)} until {waiver.until}"
    text = f"{_named(waiver)} is new since {base}, which doesn't allow {allowed}"
    return Finding("waivers", "note", text, "see that whoever reviews the change agrees with its reason")


def _idle(waiver: Waiver, evidence: Evidence) -> Finding:
    named = [found for found in evidence.cases if waiver.names(found.case.id)]
    if waiver.until < evidence.today:
        text, advice = f"expired on {waiver.until}, and covers nothing", "remove it, or agree on a new day"
    elif not named:
        text, advice = "fits no case of this run", "if none of its cases exists any more, remove it"
    elif not any(found.decision for found in named):
        text, advice = f"has no case that was compared with {evidence.base}", "read why, beside the cases"
    else:
        text, advice = f"isn't needed against {evidence.base}", "if its cases are as fast as they should be, remove it"
    return Finding("waivers", "note", f"{_named(waiver)} {text}", advice)


def _named(waiver: Waiver) -> str:
    return f"{waiver.place}: the waiver of {', '.join(waiver.cases)} ({waiver.owner})"
