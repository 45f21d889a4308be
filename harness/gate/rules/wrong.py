"""Rule: what the base measures must not end otherwise now, such as wrong or crashed."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.ended import complaint, is_doubtful, is_worse, is_wrong
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each case that ends worse than with the base, and for each new case that is wrong.

    Undecided where few processes complain, and about times alone: the machine may be the reason.
    """
    for found in evidence.cases:
        if found.now and (after := complaint(found.now)):
            yield from _judge(found, evidence.base, after)


def _judge(found: CaseEvidence, base: str, after: str) -> Iterator[Finding]:
    before = complaint(found.base)
    advice = f"run it alone: harness run SCENARIO --only '{found.case.id}', with the --ops of this gate if it has any"
    if is_doubtful(found.now) and (not found.base or is_worse(found.base, found.now)):
        advice = f"run the gate again, with nothing else on the machine; if it stays so, {advice}"
        yield Finding("wrong", "undecided", after, advice, found.case, ("now",))
    elif not found.base:
        if is_wrong(found.now):
            yield Finding("wrong", "failure", f"new: {base} doesn't have it; {after}", advice, found.case)
    elif is_worse(found.base, found.now):
        yield Finding("wrong", "failure", f"{after}; in {base} it {before or 'was ok'}", advice, found.case)
    elif found.decision is not None:
        yield Finding("wrong", "note", f"{after}; in {base} it {before}", "", found.case)
