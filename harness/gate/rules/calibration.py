"""Rule: notes about cases without a noise floor, and about noise floors that are larger than the margin asked for."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.gate._evidence import Evidence
from harness.gate.records import Finding

_AGAIN = (
    "if this is too much, delete the file of noise floors (that of --noise, or noise-*.json in the cache folder) and "
    "calibrate again while nothing else runs"
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Notes about the whole run. They change no verdict."""
    decided = [found for found in evidence.cases if found.decision and not found.control]
    if unknown := sum(found.margin.noise is None for found in decided):
        message = f"{unknown} of {len(decided)} cases have no noise floor: they were never calibrated on this machine"
        yield Finding("calibration", "note", message, "run 'harness gate calibrate' with the same scenarios, once")
    if raised := [found for found in decided if found.margin.value > found.margin.asked]:
        most = max(raised, key=lambda found: found.margin.value)
        noise, asked = (units.percent(share, 2) for share in (most.margin.value, most.margin.asked))
        message = (
            f"the noise of {len(raised)} of {len(decided)} cases lets losses pass that are larger than the {asked} "
            f"asked for: up to {noise} in {most.case.id}"
        )
        yield Finding("calibration", "note", message, _AGAIN)
