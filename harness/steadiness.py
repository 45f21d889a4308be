"""How steady the host is: by how much the time of the same work of Python differs from one time to the next.

What waits for the host is as noisy as the host. Where other programs share a processor's cores, or other guests of a
virtual machine's host do, the same work takes longer for a second, and the system needn't count that time as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from harness import units

_ADDITIONS = 20_000  # so that one turn takes about half a millisecond, less than a change of the host's speed
_LOW, _HIGH = 0.05, 0.95
_STEADY = 1.1
"""What the slow turns may take of the fast turns on a host that is called steady: a choice of ours."""


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Seconds of a turn of the same work: of the fastest and of the slowest turns, without 5% at each end."""

    fast: float
    slow: float

    @property
    def is_steady(self) -> bool:
        """Whether the host does the same work in nearly the same time."""
        return self.slow <= _STEADY * self.fast

    @property
    def sentence(self) -> str:
        """What a reader is to know."""
        found = f"The host does the same work in {units.seconds(self.fast, 3)} to {units.seconds(self.slow, 3)}"
        if self.is_steady:
            return f"{found}: it is steady."
        return (
            f"{found}: something shares its cores or changes their clocks, so what waits for the host is noisy. "
            "End other programs; on a machine that you share, measure steps as CUDA graphs."
        )


def watch(seconds: float, clock: Callable[[], float] = time.perf_counter) -> Steadiness:
    """Do the same work again and again for so many seconds, and at least twice. clock: gives seconds."""
    times: list[float] = []
    now = begin = clock()
    while now - begin < seconds or len(times) < 2:
        _work()
        before, now = now, clock()
        times.append(now - before)
    times.sort()
    return Steadiness(times[int(_LOW * len(times))], times[int(_HIGH * len(times))])


def _work() -> int:
    total = 0
    for number in range(_ADDITIONS):
        total += number
    return total
