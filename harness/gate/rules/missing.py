"""Rule: what the base could measure must still be measurable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gate._decision import CONFIRM_PAIRS
from harness.gate._evidence import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.model import FAILED, Measurement

_MOST_PROBLEMS = 3
_ENOUGH = f"run the gate again; for stored runs, measure each with --repeat {CONFIRM_PAIRS} or more"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Failures for scenarios and cases that are gone or no longer ok; notes for new cases and those never ok."""
    for broken in evidence.broken:
        problems = "; ".join(f"{p.where}: {p.message}" for p in broken.problems[:_MOST_PROBLEMS])
        message = f"{broken.file} can't be loaded any more: {problems}"
        advice = f"{evidence.base} can load it: bring back what the scenario names, or remove that from the scenario"
        yield Finding("missing", "failure", message, advice)
    for found in evidence.cases:
        if finding := _judge(found, evidence.base):
            yield finding


def _judge(found: CaseEvidence, base: str) -> Finding | None:
    before, after = _complaint(found.base), _complaint(found.now)
    if not found.base:
        text = f"new: {base} doesn't have it" + (f"; {after}" if after else "")
        return Finding("missing", "failure" if _is_wrong(found.now) else "note", text, "", found.case)
    if found.now:
        return _on_both(found, base, before, after)
    if _never_timed(found.base):
        return Finding("missing", "note", f"gone; in {base} it {before}", "", found.case)
    return Finding("missing", "failure", f"gone: {base} has it", "bring it back", found.case)


def _on_both(found: CaseEvidence, base: str, before: str, after: str) -> Finding | None:
    """The finding about a case that both sides have. before, after: how it ended where it wasn't ok."""
    never_before, never_now = _never_timed(found.base), _never_timed(found.now)
    if after and (not before or (never_now and not never_before)):
        advice = f"run it alone: harness run ... --only '{found.case.id}'"
        return Finding("missing", "failure", f"{after}; in {base} it {before or 'was ok'}", advice, found.case)
    if found.decision is None and not never_before and not never_now:
        why = "".join(f"; {where} it {text}" for where, text in ((f"in {base}", before), ("now", after)) if text)
        message = f"too few processes to decide (pairs: {len(found.pairs)}){why}"
        return Finding("missing", "undecided", message, _ENOUGH, found.case)
    if after:
        text = f"not measured: {after}, as in {base}" if never_now else f"{after}; in {base} it {before}"
        return Finding("missing", "note", text, "", found.case)
    return Finding("missing", "note", f"ok now; in {base} it {before}", "", found.case) if before else None


def _never_timed(measurements: Sequence[Measurement]) -> bool:
    return all(m.time is None for m in measurements)


def _complaint(measurements: Sequence[Measurement]) -> str:
    """How a case ended where it wasn't ok, with the first line of the reason."""
    bad = [m for m in measurements if m.time is None]
    if not bad:
        return ""
    often = "" if len(bad) == len(measurements) else f" in {len(bad)} of {len(measurements)} processes"
    reason = (bad[0].error or "").strip().splitlines()
    return f"ended as {bad[0].status.replace('_', ' ')}{often}" + (f": {reason[0]}" if reason else "")


def _is_wrong(measurements: Sequence[Measurement]) -> bool:
    """Whether a new case fails. A case that is unsupported here, or has too little memory, doesn't."""
    return any(m.status in FAILED for m in measurements)
