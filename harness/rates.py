"""How common metrics are computed from a subject, in SI units; None where something isn't known.

`metrics.py` says which metric each function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.model import PIPE, KernelFacts
from harness.subject import Subject


def over_variant(name: str) -> Callable[[Subject], float | None]:
    """A function that computes the ratio of a fact to the same fact of the variant that a metric compares with."""

    def ratio(s: Subject) -> float | None:
        over = s.over.facts.get(name) if s.over else None
        return s.facts[name] / over if s.time and over and name in s.facts else None

    return ratio


def bandwidth(s: Subject) -> float | None:
    """Bytes a second that the op has to move."""
    return s.work.moved / s.time if s.work and s.work.moved and s.time else None


def moved_bandwidth(s: Subject) -> float | None:
    """Bytes a second that the variant moves, by its own account."""
    return s.traffic.moved / s.time if s.traffic and s.traffic.moved and s.time else None


def ceiling_bandwidth(s: Subject) -> float | None:
    """Bytes a second of the work, if it took as long as this machine needs at best."""
    return s.work.moved / s.best if s.work and s.work.moved and s.best else None


def ceiling_flops(s: Subject) -> float | None:
    """Operations a second of the work, if it took as long as this machine needs at best."""
    return s.work.operations / s.best if s.work and s.work.operations and s.best else None


def of_peak(s: Subject) -> float | None:
    """The share of the library copy's bandwidth."""
    found, peak = bandwidth(s), s.limits.peak if s.limits else None
    return found / peak if found and peak else None


def of_ceiling(s: Subject) -> float | None:
    """The time that this machine needs at best, as a share of the time."""
    return s.best / s.time if s.best and s.time else None


def flops(s: Subject) -> float | None:
    """Operations a second that the op has to do."""
    return s.work.operations / s.time if s.work and s.work.operations and s.time else None


def intensity(s: Subject) -> float | None:
    """Operations that the op has to do for each byte that it has to move."""
    return s.work.operations / s.work.moved if s.work and s.work.operations and s.work.moved else None


def items(s: Subject) -> float | None:
    """Items a second."""
    return s.work.items / s.time if s.work and s.work.items and s.time else None


def speedup(s: Subject) -> float | None:
    """The time of the variant that it is compared with, over the time."""
    return s.over.time / s.time if s.over and s.over.time and s.time else None


def traffic(s: Subject) -> float | None:
    """The bytes that the variant moves over the bytes of the variant that it is compared with."""
    over = s.over.traffic.moved if s.over and s.over.traffic else 0
    return s.traffic.moved / over if s.time and s.traffic and over else None


def ideal_items(s: Subject) -> float | None:
    """Items a second of one device, times the number of devices."""
    alone = items(s.alone) if s.alone else None
    return s.world * alone if alone else None


def efficiency(s: Subject) -> float | None:
    """Items a second over the ideal; None on one device."""
    found, ideal = items(s), ideal_items(s)
    return found / ideal if found and ideal and s.world > 1 else None


def efficiency_bound(end: int) -> Callable[[Subject], float | None]:
    """The lower (0) or upper (1) bound: both times at the ends of their intervals that are worst, or best, for it."""

    def bound(s: Subject) -> float | None:
        found, alone = efficiency(s), s.alone
        if not (found and s.time and alone and alone.time and s.interval and alone.interval):
            return None
        return found * (s.time / s.interval[1 - end]) * (alone.interval[end] / alone.time)

    return bound


def kernels_most(what: Callable[[KernelFacts], int]) -> Callable[[Subject], float | None]:
    """A function for the largest value that a kernel of the variant has."""
    return lambda s: max(map(what, s.kernels), default=None)


# ---- From counters of all kernels of a call.

_COUNTED = "ncu."


def sum_of_counters(*counters: str) -> Callable[[Mapping[str, float], float | None], float | None]:
    """A function for `Metric.attached`: the sum of counters over all kernels of a call; None without all of them."""

    def total(attached: Mapping[str, float], _time: float | None) -> float | None:
        values = [attached.get(f"{_COUNTED}{name}") for name in counters]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return total


def compute_busy(attached: Mapping[str, float], _time: float | None) -> float | None:
    """The largest share that any pipe of a multiprocessor, or its schedulers, have of what they can do."""
    issued = f"{_COUNTED}issue_active"
    shares = [value for name, value in attached.items() if name == issued or name.startswith(f"{_COUNTED}{PIPE}")]
    return max(shares) if issued in attached else None
