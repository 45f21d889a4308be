"""Rule: times are compared only if both sides were timed in the same way."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.evidence import Evidence
from harness.gate.noise_store import timer
from harness.gate.records import Finding

ACCEPT = "cases were timed in another way than in the base"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding for each case whose timers differ between base and now, and for untimed work."""
    for found in evidence.cases:
        before, after = timer(found.base), timer(found.now)
        if before and after and before != after:
            message = f"timed by '{after}' now, by '{before}' in {evidence.base}: the two times can't be compared"
            advice = "declare the timer that the base has; if the change is meant: --accept timer"
            yield Finding("timer", "undecided", message, advice, found.case)
    for text in evidence.untimed:
        advice = "do the work in the call, as the base does; if the change is meant: --accept timer"
        yield Finding("timer", "undecided", f"{text} ({evidence.base})", advice)
