"""Rule: if the work of a case differs between base and now, only its times can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness import compare
from harness.gate._evidence import Evidence
from harness.gate.records import Finding
from harness.model import Measurement, Work

_MOST_NAMED = 3


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One note for all cases whose work differs. It says for the first few what differs. It changes no verdict."""
    differing: list[str] = []
    for found in evidence.cases:
        before, after = _work(found.base), _work(found.now)
        fields = compare.work_fields(before, after) if before and after else ()
        if fields:
            differing.append(f"{found.case.id} ({', '.join(fields)})")
    if differing:
        more = len(differing) - _MOST_NAMED
        named = ", ".join(differing[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        cases = "1 case has" if len(differing) == 1 else f"{len(differing)} cases have"
        message = f"{cases} other work than in {evidence.base}, so only the times were compared: {named}"
        yield Finding("work", "note", message, "don't compare their bandwidths or rates: those count other work")


def _work(measurements: Sequence[Measurement]) -> Work | None:
    return next((m.work for m in measurements if m.work), None)
