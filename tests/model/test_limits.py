"""What a machine can do: the best streams, what lies between them, and which limit binds."""

from __future__ import annotations

import math

import pytest

from harness import store
from harness.model import Bound, ComputePoint, Limits, LinkPoint, StreamPoint, Work
from tests.one_test import one_test

WORK = Work(read=600, written=400)


def stream(read: int, written: int, seconds: float, way: str = "kernel", *, is_copy: bool = False) -> StreamPoint:
    return StreamPoint(read, written, seconds, way, is_copy)


def test_the_best_way_counts_and_only_copies_make_the_peak() -> None:
    limits = Limits(
        (stream(50, 50, 4.0, "slow"), stream(50, 50, 2.0, "fast"), stream(50, 50, 2.5, "memcpy", is_copy=True))
    )
    assert [point.way for point in limits.best] == ["fast"]
    assert limits.peak == 40.0
    assert Limits((stream(50, 50, 1.0),)).peak is None
    several = (stream(50, 50, seconds, "memcpy", is_copy=True) for seconds in (4.0, 2.0, 5.0))
    assert Limits((*several, stream(50, 50, 1.0))).peak == 50.0
    assert not StreamPoint(1, 1, 1.0, "kernel").is_copy


def test_drift_compares_each_way_with_itself() -> None:
    start = (stream(50, 50, 2.0, "a"), stream(50, 50, 1.0, "b"))
    assert Limits(start, end=(stream(50, 50, 2.5, "a"),)).drift == 0.25
    assert Limits(start, end=(stream(50, 50, 2.5, "c"),)).drift is None
    assert Limits(start).drift is None


def test_between_sizes_the_time_follows_a_power_law() -> None:
    # 100 times the bytes in 10 times the time: at 10 times the bytes it is the square root of that.
    limits = Limits((stream(500, 500, 1.0), stream(50_000, 50_000, 10.0)))
    assert limits.seconds(Work(5000, 5000)) == pytest.approx(math.sqrt(10), rel=1e-12)
    assert limits.seconds(Work(500, 500)) == pytest.approx(1.0, rel=1e-12)
    assert limits.seconds(Work(50_000, 50_000)) == pytest.approx(10.0, rel=1e-12)
    assert limits.seconds(Work(5_000_000, 5_000_000)) == pytest.approx(100.0, rel=1e-12)


def test_past_the_ends_more_bytes_are_never_cheaper_nor_dearer_than_in_proportion() -> None:
    falling = Limits((stream(500, 500, 2.0), stream(1000, 1000, 1.9)))
    assert falling.seconds(Work(2000, 2000)) == pytest.approx(2.0, rel=1e-12)
    steep = Limits((stream(500, 500, 1.0), stream(1000, 1000, 4.0)))
    assert steep.seconds(Work(250, 250)) == pytest.approx(0.5, rel=1e-12)


def test_the_ceiling_at_a_measured_size_is_what_was_measured() -> None:
    # Bandwidth falls with size where the smaller stream still finds data in a cache.
    limits = Limits((stream(500, 500, 1.0), stream(1000, 1000, 4.0), stream(2000, 2000, 6.0)))
    assert limits.seconds(Work(1000, 1000)) == pytest.approx(4.0, rel=1e-12)
    # Also at the ends, and between them, where the time grows more than in proportion.
    steep = Limits((stream(500, 500, 1.0), stream(1000, 1000, 4.0), stream(2000, 2000, 16.0)))
    for times in (1.0, 1.5, 2.0, 3.0, 4.0):
        size = round(500 * times)
        assert steep.seconds(Work(size, size)) == pytest.approx(times**2, rel=1e-12)


def test_one_size_is_scaled_in_proportion() -> None:
    assert Limits((stream(100, 0, 2.0),)).seconds(Work(50, 0)) == 1.0


def test_between_mixes_the_times_of_reads_and_writes_add_up() -> None:
    limits = Limits((stream(1000, 0, 1.0), stream(0, 1000, 3.0)))
    assert limits.seconds(Work(750, 250)) == pytest.approx(1.5, rel=1e-12)
    assert limits.seconds(Work(1000, 0)) == pytest.approx(1.0, rel=1e-12)


def test_a_mix_lies_between_the_two_nearest_ones() -> None:
    limits = Limits((stream(500, 500, 1.0), stream(750, 250, 2.0), stream(1000, 0, 4.0)))
    assert limits.seconds(Work(600, 400)) == pytest.approx(1.4, rel=1e-12)
    assert limits.seconds(Work(875, 125)) == pytest.approx(3.0, rel=1e-12)
    assert limits.seconds(Work(750, 250)) == pytest.approx(2.0, rel=1e-12)


def test_a_mix_is_known_to_a_hundredth() -> None:
    """Two reads and a write are 67% of reads, as are all mixes within half a percent of that."""
    assert stream(2000, 1000, 1.0).read_share == 0.67
    limits = Limits((stream(1500, 1500, 3.0), stream(2000, 1000, 1.0), stream(2250, 750, 2.0)))
    for read in (1999, 2000, 2020):
        assert limits.seconds(Work(read, 3000 - read)) == pytest.approx(1.0, rel=1e-12)
    assert limits.seconds(Work(2034, 966)) == pytest.approx(1.1, rel=1e-12)
    assert limits.seconds(Work(1983, 1017)) == pytest.approx(1.0 + 2 * 0.009 / 0.17, rel=1e-12)


def test_a_mix_past_those_measured_takes_the_nearest() -> None:
    limits = Limits((stream(500, 500, 1.0), stream(750, 250, 2.0)))
    assert limits.seconds(Work(1000, 0)) == pytest.approx(2.0, rel=1e-12)
    assert limits.seconds(Work(0, 1000)) == pytest.approx(1.0, rel=1e-12)


def test_no_ceiling_where_nothing_moves_or_nothing_was_measured() -> None:
    assert Limits((stream(1, 1, 1.0),)).seconds(Work(0, 0)) is None
    assert Limits(()).seconds(WORK) is None


def product(kind: str, rate: float, state: str = "burst") -> ComputePoint:
    return ComputePoint(kind, 8, 8, 8, rate, "torch.mm", state)


MEMORY = stream(500, 500, 1.0)  # 1000 bytes a second
BOTH = Limits(
    (MEMORY,),
    compute=(
        product("float16", 50.0),
        product("float16", 100.0),
        product("float16", 80.0, "settled"),
        product("int8", 10.0),
    ),
    links=(LinkPoint(2, 100, 1.0, "copy"), LinkPoint(2, 50, 0.25, "copy"), LinkPoint(4, 100, 1.0, "copy")),
)


@one_test(
    ("work", "bound"),
    [
        (Work(500, 500), Bound("memory", 1.0)),
        (Work(500, 500, (("float16", 50),)), Bound("memory", 1.0)),
        (Work(500, 500, (("float16", 200),)), Bound("float16", 2.0)),
        # Operations of two types take turns.
        (Work(500, 500, (("float16", 200), ("int8", 10))), Bound("float16 + int8", 3.0)),
        # No peak was measured of float8, so no bound by compute is known, whatever else is computed.
        (Work(500, 500, (("float16", 200), ("float8", 10))), Bound("memory", 1.0)),
        (Work(flops=(("float16", 200),)), Bound("float16", 2.0)),
        (Work(500, 500, sent=1000), Bound("link", 5.0)),
        (Work(), None),
    ],
)
def test_what_takes_longest_binds(work: Work, bound: Bound | None) -> None:
    assert BOTH.bound(work, world=2) == bound
    assert BOTH.seconds(work, world=2) == (bound and bound.seconds)


def test_after_seconds_of_load_the_settled_peak_counts() -> None:
    work = Work(flops=(("float16", 200),))
    assert BOTH.seconds(work, "settled") == 2.5
    assert BOTH.rate("int8", "settled") is None


def test_a_link_is_that_of_as_many_devices() -> None:
    assert (BOTH.link(2), BOTH.link(4), BOTH.link(8)) == (200.0, 100.0, None)
    assert BOTH.seconds(Work(sent=1000), world=8) is None


@one_test(
    ("again", "cache", "counted"),
    [(400, 1000, 1600), (400, 100, 1900), (400, 0, 2000), (0, 1000, 2000)],
    ids=["fits", "in part", "unknown cache", "nothing is read again"],
)
def test_what_is_read_a_second_time_counts_beyond_the_cache(again: int, cache: int, counted: int) -> None:
    points = (stream(500, 500, 1.0), stream(5000, 5000, 10.0), stream(600, 400, 1.0), stream(6000, 4000, 10.0))
    limits = Limits(points, cache_bytes=cache)
    assert limits.seconds(Work(1200, 800, again=again)) == pytest.approx(counted / 1000)


def test_a_run_that_doesn_t_say_what_is_read_a_second_time_counts_all_of_it() -> None:
    old = store.parse(Work, '{"read": 1200, "written": 800}')
    assert Limits((stream(600, 400, 1.0),), cache_bytes=10**6).seconds(old) == pytest.approx(2.0)
