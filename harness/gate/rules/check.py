"""Rule: the outputs of an op must be right by the base's reference and check too, or a wrong result could pass."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.ended import is_wrong, never_timed
from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding

ACCEPT = "the outputs of ops are wrong by the base's reference or check, or are checked less strictly"
_READ = "read what changed in the op's reference, check and inputs; if the change is meant: --accept check"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Findings about cases that the base finds wrong or can't judge, and about checks laxer than the base's."""
    yield from _judged(evidence)
    for text in evidence.laxer:
        advice = "bring back the check of the base; if the change is meant: --accept check"
        yield Finding("check", "undecided", f"{text} ({evidence.base})", advice)


def _judged(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each case that is wrong by the base's reference, check and inputs; undecided where it can't judge.

    A case that is wrong by its own reference too is left to the rule `wrong`, and one without times to others.
    """
    for found in evidence.judged:
        measured = evidence.by_id.get(found.case.id)
        if found.wrong and not (measured and is_wrong(measured.now)):
            message = f"wrong by the reference, check and inputs of {evidence.base}: {found.wrong}"
            yield Finding("check", "failure", message, _READ, found.case)
    unable = [found for found in evidence.judged if found.unable and _is_compared(evidence.by_id.get(found.case.id))]
    if unable:
        more = f" and {len(unable) - 1} more" if len(unable) > 1 else ""
        first = f"{unable[0].case.id}{more}: {unable[0].unable}"
        message = f"{evidence.base} can't judge by its reference, check and inputs what is computed now: {first}"
        yield Finding("check", "undecided", message, _READ)


def _is_compared(measured: CaseEvidence | None) -> bool:
    return measured is None or not (never_timed(measured.base) or never_timed(measured.now))
