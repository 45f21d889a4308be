"""Rule: a case whose noise is more than twice its margin can't pass; smaller noise and missing noise make notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness import units
from harness.gate.evidence import Evidence
from harness.gate.offsets import ASSUMED, LEAST_BLOCKS
from harness.gate.records import NOISE_MOST, CaseEvidence, Finding

_FILE = "the file of --noise, or noise-*.json in the cache folder"
_AGAIN = f"if this is too much, delete the noise file ({_FILE}) and calibrate again while nothing else runs"


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each case that is too noisy to pass, and notes about the whole run, which change no verdict."""
    decided = [found for found in evidence.cases if found.decision and not found.control]
    yield from (_too_noisy(found) for found in decided if found.too_noisy)
    unknown = [found for found in decided if found.margin.noise is None]
    if unknown:
        most = max(found.margin.failing for found in unknown)
        message = (
            f"{len(unknown)} of {len(decided)} cases have no measured noise: fewer than {LEAST_BLOCKS} blocks of them "
            f"were calibrated on this machine. So their offsets, which all pairs of a run share, are assumed to have a "
            f"standard deviation of {units.percent(ASSUMED.scale, 2)}, and a case fails if it lost more than "
            f"{units.percent(most, 2)}"
        )
        yield Finding("calibration", "note", message, "run 'harness gate calibrate' with the same scenarios, once")
    known = [found for found in decided if found.margin.noise is not None and not found.margin.too_noisy]
    if raised := [found for found in known if found.margin.unwaived > found.margin.asked]:
        widest = max(raised, key=lambda found: found.margin.unwaived)
        noise, asked = (units.percent(share, 2) for share in (widest.margin.unwaived, widest.margin.asked))
        message = (
            f"the noise of {len(raised)} of {len(decided)} cases lets losses pass that are larger than the {asked} "
            f"asked for: up to {noise} in {widest.case.id}"
        )
        yield Finding("calibration", "note", message, _AGAIN)


def _too_noisy(found: CaseEvidence) -> Finding:
    margin, measured = found.margin, found.margin.noise or 0.0
    noise, most = (units.percent(share, 2) for share in (measured, margin.most))
    message = (
        f"this machine is too noisy: the noise of this case is {noise}, and the case can pass only with noise of "
        f"{most} or less, {NOISE_MOST:g} times the margin"
    )
    # Rounded up, so that the margin is wide enough.
    enough = units.percent(math.ceil(measured / NOISE_MOST * 1e4) / 1e4, 2)
    advice = f"end other work on the machine, delete the noise file ({_FILE}) and calibrate again"
    return Finding("calibration", "undecided", message, f"{advice}; or accept it with --margin {enough}", found.case)
