"""Rule: code of the repository that both sides used alike was compared with itself."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.evidence import Evidence
from harness.gate.records import Finding

ACCEPT = "code that both sides used alike, such as an installed package, isn't compared"
_MOST_NAMED = 3
_ADVICE = (
    "build and measure each revision by itself: harness run --repeat 10 with each, then harness gate REF RUN; if this "
    "code didn't change: --accept code"
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """One undecided finding that names the code."""
    if evidence.same_code:
        more = len(evidence.same_code) - _MOST_NAMED
        named = ", ".join(evidence.same_code[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        message = f"this code was not compared, since {evidence.base} used the same files as the working tree: {named}"
        yield Finding("code", "undecided", message, _ADVICE)
