"""Sums over intervals of time: what they cover together, what is left between them, and how they share it.

An interval is a pair (start, end), in seconds. Merged intervals are sorted and neither overlap nor touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

Interval = tuple[float, float]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """What the intervals cover together. Intervals without a length cover nothing."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """The sum of the lengths, in seconds."""
    return sum(end - start for start, end in intervals)


def between(covered: Sequence[Interval], window: Interval) -> list[Interval]:
    """The parts of the window that the merged intervals, which lie inside it, leave free."""
    starts = [window[0], *(end for _, end in covered)]
    ends = [*(start for start, _ in covered), window[1]]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end > start]


def common(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Seconds that two lists of merged intervals have in common."""
    seconds, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        seconds += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return seconds


def parts(intervals: Sequence[Interval]) -> list[float]:
    """Seconds of each interval, where intervals that overlap get equal parts of the time that they have in common.

    The sum of all parts is the length of what the intervals cover together.
    """
    moments = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    # The part that an interval would have got by each moment, if it had run from the first one on.
    got: dict[float, float] = {}
    running, before, sum_ = 0, 0.0, 0.0
    for moment, step in moments:
        if running:
            sum_ += (moment - before) / running
        got[moment] = sum_
        running, before = running + step, moment
    return [got[end] - got[start] for start, end in intervals]


def arrived(together: Iterable[Interval]) -> float:
    """When the last of several had begun: ranks that meet in one collective, which can't end before."""
    return max(start for start, _ in together)


def own(calls: Sequence[Interval]) -> Iterator[tuple[int, float, float]]:
    """The time that each call of one thread spends in itself, without the calls inside it.

    calls: of one thread, where each lies inside another one or apart from it. A call that ends a little after the one
    around it, since a file rounds times, is cut. Yields (index of the call, start, end), in the order of time.
    """
    open_: list[tuple[int, float]] = []
    since = 0.0
    for index in sorted(range(len(calls)), key=lambda index: (calls[index][0], -calls[index][1])):
        start, end = calls[index]
        while open_ and open_[-1][1] <= start:
            done, until = open_.pop()
            if until > since:
                yield done, since, until
            since = max(since, until)
        if open_:
            around, until = open_[-1]
            if start > since:
                yield around, since, start
            end = min(end, until)
        since = start
        open_.append((index, end))
    while open_:
        done, until = open_.pop()
        if until > since:
            yield done, since, until
        since = max(since, until)
