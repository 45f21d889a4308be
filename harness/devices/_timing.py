"""How calls are timed on every kind of device, given its clock: alone, in blocks, by replays of a graph."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from harness.devices._protocol import Batch, Clock, is_out_of_memory
from harness.ranks import Group

LONG = 20e-3  # seconds of a call from which on it is timed alone, since timing several together would gain nothing
LONGEST_PASS = 1.0
"""Seconds of a pass over all sets of buffers from which on a sample is no whole pass: slow calls on little data."""
_FEW = 8  # calls that an estimate is the mean of, and that warm up calls timed alone
_SHORTEST = 1e-3  # seconds of a batch below which the cost of reading the host's clock would show
_ALIKE = 0.02  # relative difference of two blocks in a row up to which the calls count as settled
_MOST_SETTLING = 2.0  # seconds

Calls = Sequence[Callable[[], object]]
_Made = TypeVar("_Made")


class HostClock:
    """The host's monotonic clock, for calls that have done their work when they return."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def between(self, marks: Sequence[float]) -> list[float]:
        """Seconds from each mark to the next."""
        return [later - earlier for earlier, later in itertools.pairwise(marks)]


def estimate(clock: Clock, calls: Calls, group: Group) -> float:
    """Rough seconds of one call, warm unless it takes long; at least 1 us.

    The first call may load a kernel, which takes longer than most calls. So a call counts as long only if a second call
    is long, too.
    """
    turns = itertools.cycle(calls)
    _mean(clock, [next(turns)])
    again = group.agree(_mean(clock, [next(turns)]))
    if again > LONG:
        return again
    return max(1e-6, min(again, group.agree(_mean(clock, list(itertools.islice(turns, _FEW))))))


def on_all_ranks(attempt: Callable[[], _Made], group: Group) -> tuple[_Made | None, str]:
    """(what `attempt` makes, '') if it succeeds on every rank; otherwise (None, the first rank's reason in one line).

    Out of memory is raised.
    """
    made, reason = None, None
    try:
        made = attempt()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    found = group.verdict(reason)
    return (made, "") if found is None else (None, found)


def replay_batch(clock: Clock, replay: Callable[[], object], count: int) -> Batch:
    """Each sample is one replay of a graph of `count` calls."""

    def run(n: int) -> list[float]:
        marks = []
        # Replays queue up behind each other, so only the first one may wait for the host. It isn't timed.
        replay()
        for _ in range(n):
            marks.append(clock.mark())
            replay()
        marks.append(clock.mark())
        return [seconds / count for seconds in clock.between(marks)]

    return Batch(run, count, "graph", run(1)[0] * count, replay=replay)


def launch_batch(clock: Clock, calls: Calls, flush: Callable[[], object], *, keep: int, each: float) -> Batch:
    """Each sample is one call between two marks, after `flush` emptied the cache. Calls rotate over the sets."""
    kept: deque[Any] = deque(maxlen=max(1, keep))
    turns = itertools.cycle(calls)

    def run(n: int) -> list[float]:
        marks = []
        for _ in range(n):
            # The flush also keeps the device busy while the host issues the call, so no wait for the host is timed.
            flush()
            marks.append(clock.mark())
            kept.append(next(turns)())
            marks.append(clock.mark())
        return clock.between(marks)[::2]

    run(min(_FEW, 2 * len(calls)) if each < LONG else 1)
    return Batch(run, 1, "launch", each)


def steady_batch(clock: Clock, calls: Calls, *, keep: int, seconds: float, group: Group) -> Batch:
    """Each sample is the mean of a block of calls. The host waits for the device only after the last block.

    A block is about `seconds` long: whole passes over the calls, a single long call, or a part of a pass that takes
    too long. Before the batch is made, the calls are repeated until two blocks in a row take the same time.
    """
    kept: deque[Any] = deque(maxlen=max(1, keep))
    turns = itertools.cycle(calls)

    def blocks(count: int, n: int) -> list[float]:
        marks = []
        # One block more than is timed, since the device was idle before the first one.
        for _ in range(n + 1):
            for call in itertools.islice(turns, count):
                kept.append(call())
            marks.append(clock.mark())
        return [elapsed / count for elapsed in clock.between(marks)]

    each = estimate(clock, calls, group)
    while True:
        passes = max(1, math.ceil(seconds / (each * len(calls))))
        whole = each < LONG and each * len(calls) < LONGEST_PASS
        count = passes * len(calls) if whole else math.ceil(seconds / each)
        settled = max(1e-6, _settled(partial(blocks, count), group))
        # The estimate may be too long, since first calls load kernels and fill caches. Then blocks come out too short.
        if count * settled >= seconds / 2 or settled >= each:
            return Batch(partial(blocks, count), count, "steady", count * settled)
        each = settled


def host_batch(
    calls: Calls, *, keep: int, seconds: float, group: Group, wait: Callable[[], object] = lambda: None
) -> Batch:
    """Each sample is the mean of calls in rotation, about `seconds` long, by the host's clock.

    A sample is whole passes over the calls, or a part of a pass where a pass takes longer than `seconds`: the next
    sample goes on from there. So a rotation over many buffers needn't end before there are enough samples. wait: called
    at the end of each sample, until the device has done its work.
    """
    kept: deque[Any] = deque(maxlen=max(1, keep))
    turns = itertools.cycle(calls)

    def timed(count: int) -> float:
        start = time.perf_counter()
        for call in itertools.islice(turns, count):
            kept.append(call())
        wait()
        return time.perf_counter() - start

    timed(1)  # As in `estimate`, the first call may load a kernel and isn't timed.
    count = 1
    while (elapsed := group.agree(timed(count))) < min(seconds, _SHORTEST):
        count *= 2
    if elapsed < LONG:
        # Other programs may have held up the first time. Then it says nothing about the calls.
        elapsed = min(elapsed, group.agree(timed(count)))
    each = elapsed / count
    wanted = math.ceil(seconds / each)
    per_sample = max(1, wanted if wanted < len(calls) else len(calls) * math.ceil(wanted / len(calls)))
    return Batch(lambda n: [timed(per_sample) / per_sample for _ in range(n)], per_sample, "host", per_sample * each)


def _mean(clock: Clock, calls: Calls) -> float:
    marks = [clock.mark()]
    for call in calls:
        call()
    marks.append(clock.mark())
    return clock.between(marks)[0] / len(calls)


def _settled(run: Callable[[int], list[float]], group: Group) -> float:
    """Repeat blocks until two in a row agree or the time is up. Gives rank 0's seconds of a call in the last block."""
    deadline = time.monotonic() + _MOST_SETTLING
    while True:
        earlier, later = run(2)
        alike = abs(later - earlier) <= _ALIKE * earlier
        if group.agree(alike or time.monotonic() >= deadline):
            return group.agree(later)
