"""What tools say of a step of training: seconds of each family of kernels, and what is left without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TOOL = "torch."
_FAMILY = f"{_TOOL}family_"


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a call by family of kernels, the largest first. Together with `idle` they add up to `time`.

    time: of a call without the profiler. idle: what the kernels leave of that time. A profiler slows the host down, so
    that its own idle time would be too long. longer: by what share of `time` the kernels took longer in the trace than
    the whole call took without it; 0 where they took less. The seconds of families are scaled down by as much.
    """

    time: float
    families: Mapping[str, float]
    idle: float
    longer: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds of a call in which a kernel ran."""
        return self.time - self.idle


def parts(attached: Mapping[str, float], time: float | None) -> StepParts | None:
    """The parts of a call. attached: what tools found of its case, as '<tool>.<name>'. None without a trace or a time.

    Kernels that run at the same time share it in a trace, so that no time counts twice.
    """
    busy, shares = attached.get(f"{_TOOL}time"), of_busy(attached)
    if not time or not busy or not shares:
        return None
    kept = min(busy, time)
    families = {name: kept * share for name, share in sorted(shares.items(), key=lambda item: -item[1])}
    return StepParts(time, families, time - kept, busy / time - 1 if busy > time else 0.0)


def of_busy(attached: Mapping[str, float]) -> dict[str, float]:
    """The share of each family in the time in which a kernel ran, by a trace; they add up to 1. Empty without a trace.

    A trace's own shares are of its window, from the first kernel's start to the last one's end, which has the waits for
    a host that the profiler slows down. Profilers' summaries of kernels, which texts quote, have no such waits.
    """
    found = {name.removeprefix(_FAMILY): v for name, v in attached.items() if name.startswith(_FAMILY)}
    whole = sum(found.values())
    return {name: value / whole for name, value in found.items()} if whole > 0 else {}


def share_of(family: str) -> Callable[[Mapping[str, float], float | None], float | None]:
    """A function for `metrics.found`: the family's share of the time in which a kernel ran.

    It gives None without a trace, and where the trace has no kernel of the family.
    """
    return lambda attached, _time: of_busy(attached).get(family)


def attention(attached: Mapping[str, float], _time: float | None) -> float | None:
    """The share of attention: fused kernels, products of batches, which nothing else in these models has, and softmax.

    What separate kernels of attention scale, add, mask and transpose isn't in it. None without a trace, and where the
    trace doesn't tell which products are of batches.
    """
    shares, batched = of_busy(attached), attached.get(f"{_TOOL}batched")
    if not shares or batched is None:
        return None
    whole = sum(v for name, v in attached.items() if name.startswith(_FAMILY))
    return shares.get("attention", 0.0) + shares.get("softmax", 0.0) + batched / whole


def kernels_like(part: str) -> Callable[[Mapping[str, float], float | None], float | None]:
    """A function for `Metric.attached`: the share of the kernels that have `part` in their names.

    It gives None without a trace, and where no kernel has it among the longest kernels, which alone are known.
    """

    def share(attached: Mapping[str, float], _time: float | None) -> float | None:
        busy = attached.get(f"{_TOOL}time")
        found = [v for name, v in attached.items() if name.startswith(f"{_TOOL}kernel.") and part in name]
        return sum(found) / busy if busy and found else None

    return share
