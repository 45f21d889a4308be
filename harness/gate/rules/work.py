"""Rule: if the work of a case differs between base and now, its times can be compared, but no rate and no floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness import differences
from harness.gate.evidence import Evidence
from harness.gate.records import Finding
from harness.model import Measurement, Work

ACCEPT = "the work of cases changed, so floors and rates count other work than in the base"
_MOST_NAMED = 3


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One undecided finding for all cases whose work differs. It says for the first few what differs.

    A case that is said to move more bytes looks faster in every rate, and passes its floors, without being faster.
    """
    differing: list[str] = []
    for found in evidence.cases:
        before, after = _work(found.base), _work(found.now)
        fields = differences.work_fields(before, after, strict=True) if before and after else ()
        if fields:
            differing.append(f"{found.case.id} ({', '.join(fields)})")
    if differing:
        more = len(differing) - _MOST_NAMED
        named = ", ".join(differing[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        cases = "1 case has" if len(differing) == 1 else f"{len(differing)} cases have"
        message = f"{cases} other work than in {evidence.base}, so only the times were compared: {named}"
        advice = "don't compare their bandwidths, shares and floors; if the change is meant: --accept work"
        yield Finding("work", "undecided", message, advice)


def _work(measurements: Sequence[Measurement]) -> Work | None:
    return next((m.work_done for m in measurements if m.work), None)
