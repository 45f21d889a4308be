"""Rule: the scenarios and cases that the base has must still be there."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.ended import complaint, needs_other
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding

ACCEPT = "cases and scenarios that the base has are gone"
_MOST_PROBLEMS = 3


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each scenario file that can't be loaded any more, and for each case that is gone."""
    for broken in evidence.broken:
        problems = "; ".join(f"{p.where}: {p.message}" for p in broken.problems[:_MOST_PROBLEMS])
        message = f"{broken.file} can't be loaded any more: {problems}"
        advice = f"{evidence.base} can load it: bring back what the scenario names, or remove that from the scenario"
        yield Finding("missing", "failure", message, advice)
    for found in evidence.cases:
        if found.base and not found.now:
            yield _judge(found, evidence.base)


def _judge(found: CaseEvidence, base: str) -> Finding:
    if needs_other(found.base):
        return Finding("missing", "note", f"gone; in {base} it {complaint(found.base)}", "", found.case)
    ended = f", where it {text}" if (text := complaint(found.base)) else ""
    advice = "bring back the case, or the code that it needs; if it should go: --accept missing"
    return Finding("missing", "failure", f"gone: {base} has it{ended}", advice, found.case)
