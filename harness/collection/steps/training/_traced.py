"""What tools say of a step of training: seconds of each family of kernels, and what is left without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TOOL = "torch."
_FAMILY = f"{_TOOL}family_"
_UNSCALE = "unscale"


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

    Shares of a trace are of its window, from the first kernel's start to the last one's end.
    """
    busy, idle = attached.get(f"{_TOOL}time"), attached.get(f"{_TOOL}idle")
    if not time or not busy or idle is None or idle >= 1:
        return None
    window = busy / (1 - idle)
    found = {name.removeprefix(_FAMILY): window * v for name, v in attached.items() if name.startswith(_FAMILY)}
    return StepParts(time, dict(sorted(found.items(), key=lambda item: -item[1])))


def unscaling(attached: Mapping[str, float], time: float | None) -> float | None:
    """The share of a call's time that kernels of unscaling take; None without a trace, or where it has none of them."""
    found = parts(attached, time)
    return found.families[_UNSCALE] / found.time if found and _UNSCALE in found.families else None
