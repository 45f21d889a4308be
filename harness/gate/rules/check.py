"""Rule: the outputs of an op must be checked as strictly as in the base, or a wrong result could pass."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.evidence import Evidence
from harness.gate.records import Finding

ACCEPT = "the outputs of ops are checked less strictly than in the base"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding for each op and dtype whose check is laxer than in the base."""
    for text in evidence.laxer:
        advice = "bring back the check of the base; if the change is meant: --accept check"
        yield Finding("check", "undecided", f"{text} ({evidence.base})", advice)
