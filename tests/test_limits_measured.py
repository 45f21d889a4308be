"""How limits are measured: what fits into memory, which streams, how often, and which of the times counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from harness import limits
from harness.devices import Batch, MatrixProduct, Ring
from harness.limits import Needs
from harness.model import Limits, StreamPoint, Timer
from harness.ranks import ALONE, Group
from tests.one_test import one_test
from tests.test_limits import FakeDevice


@pytest.fixture
def measured() -> Limits:
    return limits.measure(FakeDevice(), Needs())


@pytest.mark.slow  # the tests below have what half of the free memory holds
@one_test(
    ("free", "moved", "products", "sent"),
    [
        (2**17, {2**12, 2**14, 2**16}, {64}, {2**10}),
        (2**17 - 1, {2**12, 2**14}, {64}, {2**10}),
        (2 * 12 * 64**2 - 1, {2**12, 2**14}, set(), {2**10}),
        (2**12 - 1, set(), set(), set()),
        (2**22, {2**12, 2**14, 2**16}, {64, 128}, {2**10, 2**20}),
        (2**22 - 1, {2**12, 2**14, 2**16}, {64, 128}, {2**10}),
    ],
)
def test_what_is_measured_leaves_room_for_what_is_beside_it(free, moved, products, sent):
    """Streams and products take up to half of the memory, what is sent a quarter."""
    device = FakeDevice()
    device.free_bytes = lambda: free
    found = limits.measure(device, Needs(kinds=("float32",), worlds=(2,)))
    assert {point.moved for point in found.points} == moved
    assert {point.m for point in found.compute} == products
    assert {point.sent for point in found.links} == sent


def copies(*sizes: int, **fields: bool) -> tuple[StreamPoint, ...]:
    return tuple(StreamPoint(size // 2, size // 2, 1e-9 * size, "fast", **fields) for size in sizes)


def test_streams_from_a_twentieth_to_half_of_the_largest_are_repeated_at_the_end(monkeypatch):
    repeated: list[tuple[list[int], int]] = []
    monkeypatch.setattr(
        limits, "_repeated", lambda _, points, largest: repeated.append(([p.moved for p in points], largest)) or ()
    )
    limits.again(FakeDevice(), Limits(copies(4000, 198, 200, 2000, 2002)))
    assert repeated == [([200, 2000], 4000)]


def test_a_probe_repeats_the_largest_stream_of_each_mix_up_to_a_quarter(monkeypatch):
    repeated: list[list[int]] = []

    def again(_device: object, points: Sequence[StreamPoint], largest: int, rounds: int) -> tuple[StreamPoint, ...]:
        assert (largest, rounds) == (4000, 1)
        repeated.append([point.moved for point in points])
        return tuple(points)

    monkeypatch.setattr(limits, "_repeated", again)
    reads = (StreamPoint(1000, 0, 1e-6, "fast"), StreamPoint(1002, 0, 1e-6, "fast"))
    assert limits._holds(FakeDevice(), Limits((*copies(4000, 200, 1000, 1002), *reads)), lambda *_: None)
    assert repeated == [[1000, 1000]]
    # Where none is so small, the largest one of each mix.
    repeated.clear()
    assert limits._holds(FakeDevice(), Limits(copies(4000, 2000)), lambda *_: None)
    assert repeated == [[4000]]


@pytest.mark.parametrize(("slowdown", "holds"), [(1.0099, True), (1.0101, False), (0.9901, True), (0.9899, False)])
def test_kept_limits_hold_as_far_as_the_kind_of_device_allows(measured, slowdown, holds):
    assert limits._holds(FakeDevice(slowdown=slowdown), measured, lambda *_: None) == holds


@pytest.mark.parametrize(("free", "memory"), [(2**34, 2**16), (2**16, 2**15), (2**10, 2**13)])
def test_streams_are_repeated_in_what_half_of_the_free_memory_holds(measured, monkeypatch, free, memory):
    """And in as much as the largest of them needs."""
    made: list[int] = []
    arena = limits._Arena
    monkeypatch.setattr(limits, "_Arena", lambda device, largest: made.append(largest) or arena(device, largest))
    device = FakeDevice()
    device.free_bytes = lambda: free
    limits._repeated(device, [point for point in measured.best if point.moved <= 2**13], 2**16)
    limits._repeated(device, [StreamPoint(2**n, 2**n, 1.0, "fast") for n in (11, 12)], 2**16)
    assert made[-1] == memory


@one_test(
    ("largest", "arrays", "each", "count"),
    [(2**16, 2, 2**12, 4), (2**16, 2, 2**10, 8), (2**16, 3, 2**14, 1), (2**10, 1, 2**12, 4), (2**10, 1, 512, 32)],
)
def test_the_sets_of_a_stream_lie_side_by_side(largest, arrays, each, count):
    """Four, or as many as are four times the cache of 4 KiB; fewer where the memory ends, which is five caches."""
    arena = limits._Arena(FakeDevice(), largest)
    sets = arena.sets(arrays, each)
    begin = arena.data.data_ptr()
    places = [(array.data_ptr() - begin, array.nbytes) for one in sets for array in one]
    assert places == [(number * each, each) for number in range(count * arrays)]


@one_test(
    ("samples", "rounds", "median"),
    [
        ([1e-6], 1, 1e-6),
        ([*[1e-6] * 5, 1.1e-6], 2, 1e-6),
        ([1.0, 1.1], 5, 1.05),
        ([1.0, 1.0049, 1.0], 1, 1.0),
        ([1.0, 1.0051, 1.0], 5, 1.0),
    ],
)
def test_a_stream_is_timed_until_its_median_is_sure(samples, rounds, median):
    """To half a percent, or thirty times."""
    taken: list[int] = []

    class Scripted(FakeDevice):
        def batch(self, calls, *, timer: Timer, keep: int, seconds: float, group: Group = ALONE) -> Batch:
            assert (keep, seconds) == (1, 2e-3)

            def run(count: int) -> list[float]:
                taken.append(count)
                return [samples[number % len(samples)] for number in range(count)]

            return Batch(run, 1, "host", seconds)

    device = Scripted()
    (stream, *_) = (stream for stream in device.streams() if stream.reads and stream.writes)
    point = limits._point(device, limits._Arena(device, 2**16), stream, 3000)
    assert (point.read, point.written, point.way, point.is_copy) == (1024, 1024, "slow", True)
    assert point.seconds == pytest.approx(median)
    assert taken == [6] * rounds
    assert limits._point(device, limits._Arena(device, 2**16), stream, 700).moved == 1024


def test_a_stream_that_never_is_sure_ends_with_the_time(monkeypatch):
    now = iter([0.0, 0.1, 0.19, 0.2])
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(now))
    taken: list[int] = []

    class Noisy(FakeDevice):
        def batch(self, calls, *, timer: Timer, keep: int, seconds: float, group: Group = ALONE) -> Batch:
            def run(count: int) -> list[float]:
                taken.append(count)
                return [1.0, 2.0, 3.0] * (count // 3)

            return Batch(run, 1, "host", seconds)

    (stream, *_) = Noisy().streams()
    assert limits._point(Noisy(), limits._Arena(Noisy(), 2**16), stream, 2**12).seconds == 2.0
    assert taken == [6] * 3


@pytest.mark.parametrize(("seconds", "calls"), [(19e-3, 8), (21e-3, 3)])
def test_a_burst_is_the_median_of_a_few_calls_behind_the_first(seconds, calls):
    """One call loads the kernel, one says how long it takes, and the first of the burst waits for the host."""
    device = FakeDevice()
    script = [9.0, seconds, 9.0, *[seconds] * (calls // 2 + 1), *[1.0] * calls]

    def call() -> None:
        device.clock.now += script[device.multiplied]
        device.multiplied += 1

    product = MatrixProduct("float32", "mm", 8, 8, 8, 1, lambda: call)
    assert limits._burst_seconds(device, product) == pytest.approx(seconds)
    assert device.multiplied == 2 + 1 + calls


@pytest.mark.parametrize(
    ("burst", "load", "calls"), [(0.01, 0.05, 10), (0.01, 0.25, 30), (0.05, 0.1, 3), (0.05, 0.2, 6)]
)
def test_what_is_settled_are_the_last_calls_of_a_load(monkeypatch, burst, load, calls):
    """In loops of 0.1 s, or of three calls, until the load has lasted as long as the device says."""
    device = FakeDevice()
    device.load_seconds = load
    monkeypatch.setattr(limits.time, "monotonic", lambda: device.clock.now)

    def call() -> None:
        device.multiplied += 1
        device.clock.now += burst * (1 + device.multiplied / 1000)

    product = MatrixProduct("float32", "mm", 8, 8, 8, 1, lambda: call)
    a_loop = max(3, round(0.1 / burst))
    middle = burst * (1 + (calls - (a_loop - 1) / 2) / 1000)
    assert limits._settled_seconds(device, product, burst) == pytest.approx(middle)
    assert device.multiplied == calls


def test_a_link_s_time_is_the_median_of_five_loops_of_ten():
    taken = iter([90.0, 10.0, 20.0, 30.0, 40.0])
    asked: list[int] = []
    ring = Ring(2, 2**10, "ring", lambda: lambda times: asked.append(times) or next(taken))
    assert limits._link(ring).seconds == 3.0
    assert asked == [10] * 5


def test_products_and_rings_begin_with_the_memory_that_is_free():
    """What streams and products before them have left is given back."""

    class Told(FakeDevice):
        def release(self) -> None:
            self.log.append("release")

    device = Told()
    limits.measure(device, Needs(streams=False, kinds=("float32", "float16"), worlds=(2, 4)))
    done = [word for word, _ in itertools.groupby(device.log)]
    assert done == ["release", "float32", "release", "float16", "release", "ring of 2", "release", "ring of 4"]


def test_steps_that_are_left_out_are_told_as_done():
    told: list[float] = []
    device = FakeDevice()
    device.stream_seconds, device.stream_sizes = 0.0, (2**12, 2**13, 2**14, 2**15, 2**16, 2**17, 2**18)
    limits.measure(device, Needs(kinds=("float32",)), lambda _, share: told.append(share))
    assert told == [step / 8 for step in range(8)]


def test_the_first_step_of_a_second_run_is_the_probe():
    limits.ready(FakeDevice(), Needs())
    told: list[tuple[str, float]] = []
    limits.ready(FakeDevice(), Needs(), progress=lambda *said: told.append(said))
    assert told == [("checking whether the machine is as it was", 0.0)]


def test_each_stream_is_repeated_once_at_the_end(measured):
    found = limits.again(device := FakeDevice(), measured)
    assert len(device.log) == len(found.end) > 0


def test_streams_have_random_numbers_of_a_block_whatever_their_size(monkeypatch):
    assert limits._Arena(FakeDevice(), 2**16).data.unique().numel() > 2**13
    drawn: list[int] = []
    rand = torch.rand
    monkeypatch.setattr(torch, "rand", lambda count, **of: drawn.append(count) or rand(count, **of))
    monkeypatch.setattr(limits, "_RANDOM", 6000)
    for size in (2**14, 2**16):
        limits._Arena(FakeDevice(), size)
    assert drawn == [5 * 2**12 // 4, 6000]
