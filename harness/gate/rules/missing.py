"""Rule: the scenarios and cases that the base has must still be there."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.ended import complaint, needs_other
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.gate.renamed import Renamed, renamed

ACCEPT = "cases and scenarios that the base has are gone"
_MOST_PROBLEMS = 3


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each scenario file that can't be loaded any more, each other name, and each case that is gone."""
    for broken in evidence.broken:
        problems = "; ".join(f"{p.where}: {p.message}" for p in broken.problems[:_MOST_PROBLEMS])
        message = f"{broken.file} can't be loaded any more: {problems}"
        advice = f"{evidence.base} can load it: correct these lines of the scenario, or bring back what they name"
        yield Finding("missing", "failure", message, advice)
    for pair in renamed(evidence.cases):
        yield _renamed(pair, evidence)
    for found in evidence.cases:
        if found.base and not found.now:
            yield _judge(found, evidence.base)


def _renamed(pair: Renamed, evidence: Evidence) -> Finding:
    """A name that is gone beside one that is new: how to gate what else changed, which nobody has compared."""
    count = f"{pair.cases} case{'' if pair.cases == 1 else 's'}"
    text = f"the {pair.kind} '{pair.before}' of {evidence.base} is gone, and '{pair.now}' is new with the same {count}"
    nothing = not any(found.base and found.now for found in evidence.cases)
    advice = (
        "the gate compares only what has one name: gate other changes under the old name, and rename in a commit of "
        f"its own, with --accept missing{' --accept uncompared' if nothing else ''}"
    )
    return Finding("missing", "failure", text, advice)


def _judge(found: CaseEvidence, base: str) -> Finding:
    if needs_other(found.base):
        return Finding("missing", "note", f"gone; in {base} it {complaint(found.base)}", "", found.case)
    ended = f", where it {text}" if (text := complaint(found.base)) else ""
    advice = "bring back the case, or the code that it needs; if it should go: --accept missing"
    return Finding("missing", "failure", f"gone: {base} has it{ended}", advice, found.case)
