"""Rule: what isn't known of the machine's noise, and where the noise lets a loss pass that wasn't meant to."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.gate._evidence import Evidence
from harness.gate.records import Finding

_AGAIN = (
    "if that is too much, delete the file of noise floors (that of --noise, or noise-*.json in the cache folder) and "
    "calibrate again while nothing else runs"
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Notes about the whole run. The verdicts stand as they are: a margin only says what they are about."""
    decided = [found for found in evidence.cases if found.decision and not found.control]
    if unknown := sum(found.margin.floor is None for found in decided):
        message = f"{unknown} of {len(decided)} cases have no noise floor: they were never calibrated on this machine"
        yield Finding("calibration", "note", message, "run 'harness gate calibrate' with the same scenarios, once")
    if raised := [found for found in decided if found.margin.value > found.margin.asked]:
        most = max(raised, key=lambda found: found.margin.value)
        floor, asked = (units.percent(share, 2) for share in (most.margin.value, most.margin.asked))
        message = (
            f"the noise of {len(raised)} of {len(decided)} cases lets losses pass that are larger than the {asked} "
            f"asked for: up to {floor} of {most.case.id}"
        )
        yield Finding("calibration", "note", message, _AGAIN)
