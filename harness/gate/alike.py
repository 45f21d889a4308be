"""Whether two codes that measure give the same times of the same kernels: the base's, in pairs of fresh processes."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import HarnessError
from harness.gate import deciding, looks
from harness.gate.centre import Centre
from harness.gate.noise_store import Noise, timer
from harness.gate.pairing import PairMeasurer
from harness.gate.records import Stage
from harness.model import Job

_MOST_NAMED = 3
_LOOKS: tuple[Stage, ...] = ("screen", "confirm")


def unlike(pairs: PairMeasurer, jobs: Sequence[Job], asked: float, noise: Noise) -> str:
    """Why the two codes can't be said to measure alike, in words; "" if they do.

    pairs: its two sides measure the same kernels, each with one of the codes. asked: the margin, as a share. A case is
    measured alike if both bounds of its change lie within its margin.
    """
    going = list(jobs)
    try:
        for stage in _LOOKS:
            if going:
                count = deciding.SCREEN_PAIRS if stage == "screen" else looks.CONFIRM_PAIRS
                pairs.measure(stage, count, {"base": going, "now": going})
            going = [job for job in going if not _is_alike(pairs, job.case.id, asked, noise, len(jobs))]
    except HarnessError as error:
        return f"measured by one of them alone: {error.message}"
    named = ", ".join(job.case.id for job in going[:_MOST_NAMED])
    more = f" and {len(going) - _MOST_NAMED} more" if len(going) > _MOST_NAMED else ""
    return f"not measured alike, or too few pairs say so: {named}{more}" if going else ""


def _is_alike(pairs: PairMeasurer, key: str, asked: float, noise: Noise, family: int) -> bool:
    changes = [pair.change for pair in pairs.pairs[key]]
    measured = pairs.measurements["base"][key] + pairs.measurements["now"][key]
    if measured and all(m.status in ("unsupported", "skipped") for m in measured):
        return True  # neither measures it
    if len(changes) < deciding.LEAST_PAIRS:
        return False
    centre, margin = Centre.of(changes), noise.margin(key, timer(pairs.measurements["now"][key]), asked, family)
    level = looks.PASS_LEVEL
    return not margin.too_noisy and centre.low(level) > margin.limit and centre.high(level) < -margin.limit
