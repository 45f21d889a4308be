"""Which of several launches is the fastest, timed as a case is: without the host's time, and in or out of the L2.

A launch of a few microseconds takes the host longer than the GPU. So the GPU is held busy until the host has queued all
calls of a sample; otherwise every launch would seem as slow as the host, and the choice would be left to chance.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from harness import stats

if TYPE_CHECKING:
    import torch

_FIRST, _LAST = 3, 11  # samples of each launch, and of each finalist; of eleven, the median has an interval
_FINALISTS = 4
_SAMPLE = 1e-3  # seconds that a sample takes, roughly
_MOST_CALLS = 32  # of a sample: far fewer than a stream's queue has room for
_HOLD, _LONGEST_HOLD = 2**18, 2**26  # cycles of the GPU: from a tenth of a millisecond to some tens of milliseconds
_CACHES = 4  # L2s that the sets of buffers are as large as, as in a session
_MOST_SETS = 1024
_PLACED = 512  # bytes: torch's allocator places tensors so


def fastest(count: int, seconds: Callable[[int], float]) -> int:
    """The fastest of `count` launches; the first of them unless another one is surely faster.

    seconds(place) times the launch at a place once. Launches are timed in turns, so that a change of the clock rate
    meets all of them alike. The fastest few and the first are timed anew, and these times alone decide, since the
    smallest of many noisy times is too small.
    """
    times = _in_turns(range(count), seconds, _FIRST)
    ordered = sorted(times, key=lambda place: statistics.median(times[place]))
    times = _in_turns(sorted({0, *ordered[:_FINALISTS]}), seconds, _LAST)
    best = min(times, key=lambda place: statistics.median(times[place]))
    return best if _interval(times[best])[1] < _interval(times[0])[0] else 0


def _in_turns(places: Sequence[int], seconds: Callable[[int], float], samples: int) -> dict[int, list[float]]:
    times: dict[int, list[float]] = {place: [] for place in places}
    for _ in range(samples):
        for place in places:
            times[place].append(seconds(place))
    return times


def _interval(times: Sequence[float]) -> tuple[float, float]:
    return stats.median_interval(times) or (min(times), max(times))


@dataclass(slots=True)
class HeldClock:
    """Times launches on torch's current stream. launch(place, number): one call, with the set of buffers of a number.

    turns: the sets' numbers, endlessly. calls: of a sample. hold: cycles for which the GPU is held busy.
    """

    launch: Callable[[int, int], None]
    turns: Iterator[int]
    calls: int = 1
    hold: int = _HOLD

    @classmethod
    def of(cls, launch: Callable[[int, int], None], sets: int) -> HeldClock:
        """A clock whose samples take a millisecond, or one call."""
        clock = cls(launch, cycle(range(sets)))
        clock.calls = max(1, min(_MOST_CALLS, int(_SAMPLE / max(clock(0), 1e-9))))
        return clock

    def __call__(self, place: int) -> float:
        """Seconds of a call of the launch at this place, the mean of a sample."""
        import torch

        while True:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self.hold)
            begin.record()
            for number in islice(self.turns, self.calls):
                self.launch(place, number)
            end.record()
            is_early = not begin.query()  # all calls were queued before the GPU came to the first one
            end.synchronize()
            if is_early or self.hold >= _LONGEST_HOLD:
                return float(begin.elapsed_time(end)) * 1e-3 / self.calls
            self.hold *= 2


def rotated(tensors: Sequence[torch.Tensor | None]) -> list[tuple[torch.Tensor | None, ...]]:
    """These contiguous tensors, and copies that are aligned alike, so many that no call finds its own in the L2."""
    import torch

    given = [tensor for tensor in tensors if tensor is not None]
    cache = torch.cuda.get_device_properties(given[0].device).L2_cache_size
    count = -(-_CACHES * cache // max(1, sum(tensor.nbytes for tensor in given)))
    copies = range(1, min(count, _MOST_SETS))
    return [tuple(tensors), *(tuple(None if t is None else _copied(t) for t in tensors) for _ in copies)]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    offset = tensor.data_ptr() % _PLACED
    memory = torch.empty(tensor.nbytes + offset, dtype=torch.uint8, device=tensor.device)
    return memory[offset:].view(tensor.dtype).view(tensor.shape).copy_(tensor)
