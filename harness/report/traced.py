"""What tools say of a step of training: seconds of each family of kernels, and what is left without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.metrics import LOSS, UNSCALE

_TOOL = "torch."
_FAMILY = f"{_TOOL}family_"
_UNSCALE = "unscale"
_LOSS = "losses.loss"


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a call by family of kernels, the largest first. time: of a call without the profiler.

    idle: the rest of that time. A profiler slows the host down, so that its own idle time would be too long.
    """

    time: float
    families: Mapping[str, float]

    @property
    def idle(self) -> float:
        """Seconds of a call in which no kernel ran."""
        return max(0.0, self.time - sum(self.families.values()))


def parts(attached: Mapping[str, float], time: float | None) -> StepParts | None:
    """The parts of a call. attached: what tools found of its case, as '<tool>.<name>'. None without a trace or a time.

    Shares of a trace are those of its window, from the first kernel's start to the last one's end.
    """
    busy, idle = attached.get(f"{_TOOL}time"), attached.get(f"{_TOOL}idle")
    if not time or not busy or idle is None or idle >= 1:
        return None
    window = busy / (1 - idle)
    found = {name.removeprefix(_FAMILY): window * v for name, v in attached.items() if name.startswith(_FAMILY)}
    return StepParts(time, dict(sorted(found.items(), key=lambda item: -item[1])))


def facts(attached: Mapping[str, float], time: float | None) -> dict[str, float]:
    """The metrics that tools tell of a step: the loss of longer trainings, and the share of unscaling if it has any."""
    told = {LOSS: attached[_LOSS]} if _LOSS in attached else {}
    found = parts(attached, time)
    if found is None or _UNSCALE not in found.families:
        return told
    return told | {UNSCALE: found.families[_UNSCALE] / found.time}
