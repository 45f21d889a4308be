"""Rule: one code measures both sides. If the commit changes that code, its times are not the base's times."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.evidence import Evidence
from harness.gate.records import Finding

ACCEPT = "the code that measures changed, and it isn't known to measure the base's kernels as before"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding if the code that measures changed, unless it measures the base's kernels as before."""
    if evidence.measuring:
        advice = (
            "measure both sides by a harness that you trust: --harness VERSION (not for a device of your own); or read "
            "what changed: --accept measuring"
        )
        yield Finding("measuring", "undecided", evidence.measuring, advice)
