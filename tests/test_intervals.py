"""Sums over intervals of time, beside the same sums over single seconds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest

from harness.intervals import Interval, arrived, between, common, length, merged, own, parts

SEEDS = range(40)


def drawn(seed: int, most: int = 6) -> list[Interval]:
    """Intervals between 0 s and 12 s that begin and end with whole seconds; some have no length."""
    generator = random.Random(seed)
    starts = [generator.randrange(12) for _ in range(generator.randrange(most))]
    return [(float(start), float(generator.randint(start, 12))) for start in starts]


def seconds(intervals: Iterable[Interval]) -> list[int]:
    """The seconds that intervals cover, by their beginnings; those that several cover as often."""
    return sorted(second for start, end in intervals for second in range(int(start), int(end)))


def test_what_intervals_cover_together() -> None:
    assert merged([(3, 4), (0, 1), (1, 2), (2.5, 2.5), (0.5, 1.5), (3.2, 3.4)]) == [(0, 2), (3, 4)]
    assert merged([]) == []
    assert merged([(1, 1), (2, 3)]) == [(2, 3)]
    for seed in SEEDS:
        found = merged(iter(drawn(seed)))
        assert seconds(found) == sorted(set(seconds(drawn(seed))))
        assert all(start < end for start, end in found)
        assert all(one[1] < other[0] for one, other in pairwise(found))
        assert length(found) == len(seconds(found))


def test_what_a_window_has_free() -> None:
    window = (0.0, 12.0)
    assert between([], window) == [window]
    assert between([window], window) == []
    for seed in SEEDS:
        covered = merged(drawn(seed))
        free = between(covered, window)
        assert sorted(seconds(free) + seconds(covered)) == [*range(12)]
        assert all(start < end for start, end in free)


def test_what_two_have_in_common() -> None:
    assert common([(0, 2), (3, 5)], [(1, 4)]) == common([(1, 4)], [(0, 2), (3, 5)]) == 2
    for seed in SEEDS:
        one, other = merged(drawn(seed)), merged(drawn(seed + 1000))
        assert common(one, other) == len({*seconds(one)} & {*seconds(other)})


def test_intervals_share_the_time_that_they_have_in_common() -> None:
    assert parts([(0, 4), (1, 3), (1, 2)]) == pytest.approx([1 + 1 / 3 + 1 / 2 + 1, 1 / 3 + 1 / 2, 1 / 3])
    assert parts([]) == []
    for seed in SEEDS:
        intervals = [(start + 0.0, end) for start, end in drawn(seed)]
        running = Counter(seconds(intervals))
        wanted = [sum(1 / running[second] for second in seconds([one])) for one in intervals]
        assert parts(intervals) == pytest.approx(wanted)


def test_the_last_one_to_begin() -> None:
    assert arrived(iter([(2.0, 9.0), (5.0, 6.0), (1.0, 7.0)])) == 5.0


def nested(generator: random.Random, window: tuple[int, int]) -> list[Interval]:
    """Calls inside a window, and calls inside of them: each lies inside another one or apart from it."""
    found: list[Interval] = []
    at = window[0]
    while at < window[1]:
        at += generator.randrange(3)
        end = min(window[1], at + generator.randint(1, 9))
        if end > at:
            found += [(float(at), float(end)), *nested(generator, (at + generator.randrange(2), end - 1))]
        at = end
    return found


def test_each_call_has_the_time_without_the_calls_inside_it() -> None:
    around, first, inner, last = (0, 10), (1, 4), (2, 3), (4, 6)
    wanted = [(0, 0, 1), (1, 1, 2), (2, 2, 3), (1, 3, 4), (3, 4, 6), (0, 6, 10)]
    assert list(own([around, first, inner, last])) == wanted
    for seed in SEEDS:
        calls = nested(random.Random(seed), (0, 24))
        random.Random(seed).shuffle(calls)
        calls = list(dict.fromkeys(calls))
        found = list(own(calls))
        # The innermost call has a second: the shortest one that covers it.
        innermost: dict[int, int] = {}
        for index in sorted(range(len(calls)), key=lambda index: calls[index][0] - calls[index][1]):
            innermost |= dict.fromkeys(seconds([calls[index]]), index)
        assert {second: index for index, begin, end in found for second in seconds([(begin, end)])} == innermost
        assert len(seconds((start, end) for _, start, end in found)) == len(innermost)
        assert [start for _, start, _ in found] == sorted(start for _, start, _ in found)
        assert all(start < end for _, start, end in found)


def test_a_call_that_ends_after_the_one_around_it_is_cut() -> None:
    assert list(own([(0, 4), (3, 5)])) == [(0, 0, 3), (1, 3, 4)]
    assert list(own([(0, 4), (3, 5), (6, 7)])) == [(0, 0, 3), (1, 3, 4), (2, 6, 7)]
    assert list(own([(0, 4), (0, 4)])) == [(1, 0, 4)]
