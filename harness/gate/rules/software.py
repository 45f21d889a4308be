"""Rule: both sides run with the software that is installed, so a change of what should be installed isn't compared."""

from __future__ import annotations

from collections.abc import Iterator

from harness.gate.evidence import Evidence
from harness.gate.records import Finding

ACCEPT = "files that say which software is installed changed, but both sides ran with the same software"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding that names the files, and one that names the versions with which the sides differ."""
    if evidence.used and evidence.used.software:
        named = ", ".join(evidence.used.software)
        text = f"what both sides are to run with changed, but both ran with what is installed and set here: {named}"
        advice = (
            "install the software of each revision, measure it with harness run --repeat 10, and compare: harness gate "
            "REF RUN; if no time depends on it: --accept software"
        )
        yield Finding("software", "undecided", text, advice)
    if evidence.used and evidence.used.versions:
        text = f"{evidence.base} ran with other software than the working tree: {'; '.join(evidence.used.versions)}"
        advice = "give both sides the same software; if the change means to compare this software: --accept software"
        yield Finding("software", "undecided", text, advice)
