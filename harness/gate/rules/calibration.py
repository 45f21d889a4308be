"""Rule: a case whose noise is more than twice its margin can't pass; smaller noise and missing noise make notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness import units
from harness.gate.evidence import Evidence
from harness.gate.noise_store import LEAST_BLOCKS
from harness.gate.records import NOISE_MOST, CaseEvidence, Finding

_FILE = "the file of --noise, or noise-*.json in the cache folder"
_AGAIN = f"if this is too much, delete the noise file ({_FILE}) and calibrate again while nothing else runs"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each case that is too noisy to pass, and notes about the whole run, which change no verdict."""
    decided = [found for found in evidence.cases if found.decision and not found.control]
    yield from (_too_noisy(found) for found in decided if found.too_noisy)
    if unknown := sum(found.margin.noise is None for found in decided):
        message = (
            f"{unknown} of {len(decided)} cases have no measured noise: fewer than {LEAST_BLOCKS} blocks of them were "
            "calibrated on this machine"
        )
        yield Finding("calibration", "note", message, "run 'harness gate calibrate' with the same scenarios, once")
    if raised := [found for found in decided if found.margin.asked < found.margin.value <= found.margin.most]:
        most = max(raised, key=lambda found: found.margin.value)
        noise, asked = (units.percent(share, 2) for share in (most.margin.value, most.margin.asked))
        message = (
            f"the noise of {len(raised)} of {len(decided)} cases lets losses pass that are larger than the {asked} "
            f"asked for: up to {noise} in {most.case.id}"
        )
        yield Finding("calibration", "note", message, _AGAIN)


def _too_noisy(found: CaseEvidence) -> Finding:
    margin = found.margin
    noise, most = (units.percent(share, 2) for share in (margin.value, margin.most))
    message = (
        f"this machine is too noisy: the noise of this case is {noise}, and the case can pass only with noise of "
        f"{most} or less, {NOISE_MOST:g} times the margin"
    )
    # Rounded up, so that the margin is wide enough.
    enough = units.percent(math.ceil(margin.value / NOISE_MOST * 1e4) / 1e4, 2)
    advice = f"end other work on the machine, delete the noise file ({_FILE}) and calibrate again"
    return Finding("calibration", "undecided", message, f"{advice}; or accept it with --margin {enough}", found.case)
