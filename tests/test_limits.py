"""Limits: everything that is needed is measured, and nothing else; what is known is kept for the next run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness import limits
from harness.devices import Batch, MatrixProduct, Ring, Stream
from harness.devices.cpu import Cpu
from harness.limits import Needs
from harness.model import COMPUTE_KINDS, DeviceFacts, Limits, Machine, StreamPoint, Timer, Work
from harness.ranks import ALONE, Group
from tests.one_test import one_test

EVERYTHING = Needs(kinds=("float32", "float16", "float8"), worlds=(2,))


class FakeClock:
    """Time that matrix products let pass."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def between(self, marks: Sequence[float]) -> list[float]:
        return [b - a for a, b in pairwise(marks)]


class FakeDevice(Cpu):
    """Reads at 4 GB/s, writes at 2 GB/s, after a microsecond; `slowdown` stretches everything.

    Multiplies float32 at 1 and float16 at 2 TFLOP/s, at half of that from the hundredth product on, and has no float8.
    Sends 1 GB/s. It notes what it was asked to do in `log`.
    """

    cache_bytes = 2**12
    stream_sizes = (2**12, 2**14, 2**16)
    stream_seconds = math.inf
    load_seconds = 0.05
    probe_rounds = 1
    probe_tolerance = 0.01

    def __init__(self, fingerprint: str = "f00d", slowdown: float = 1.0, torch: str = "2.13") -> None:
        self.fingerprint = fingerprint
        self.slowdown = slowdown
        self.torch = torch
        self.clock: FakeClock = FakeClock()
        self.log: list[str] = []
        self.multiplied = 0

    def machine(self) -> Machine:
        devices = (DeviceFacts("A processor", 2**34, self.cache_bytes),)
        return Machine("cpu", self.fingerprint, devices, driver="1", versions=(("torch", self.torch),))

    def streams(self) -> Iterator[Stream]:
        for reads, writes in ((1, 0), (1, 1), (0, 1)):
            for way, factor in (("slow", 2.0), ("fast", 1.0)):
                yield Stream(way, reads, writes, self.prepare(factor), is_copy=(way, reads, writes) == ("slow", 1, 1))

    def prepare(self, factor: float):
        def prepare(sources, destinations):
            read, written = (sum(t.nbytes for t in tensors) for tensors in (sources, destinations))
            return lambda: factor * (1e-6 + read / 4e9 + written / 2e9)

        return prepare

    def batch(self, calls, *, timer: Timer, keep: int, seconds: float, group: Group = ALONE) -> Batch:
        self.log.append("stream")
        return Batch(lambda n: [self.slowdown * calls[0]() for _ in range(n)], 1, "host", seconds)

    def products(self, kind: str) -> Iterator[MatrixProduct]:
        rate = {"float32": 1e12, "float16": 2e12}.get(kind)
        for size in (64, 128) if rate else ():
            self.log.append(kind)
            seconds = 2 * size**3 / rate * (1.0 if size == 64 else 1.01)  # the smaller one is the better one
            yield MatrixProduct(kind, "mm", size, size, size, 12 * size**2, self.multiply(seconds))

    def multiply(self, seconds: float) -> Callable[[], Callable[[], None]]:
        def call() -> None:
            self.multiplied += 1
            self.clock.now += self.slowdown * seconds * (2 if self.multiplied > 100 else 1)

        return lambda: call

    def rings(self, world: int) -> Iterator[Ring]:
        for sent in (2**10, 2**20):
            self.log.append(f"ring of {world}")
            yield Ring(world, sent, "ring", self.send(sent))

    def send(self, sent: int) -> Callable[[], Callable[[int], float]]:
        return lambda: lambda times: times * (1e-6 + sent / 1e9)


@pytest.fixture(scope="module")
def measured() -> Limits:
    return limits.measure(FakeDevice(), Needs())


@pytest.fixture(autouse=True)
def _nothing_is_kept(cache_folder: Path) -> None:
    for file in cache_folder.glob("limits-*"):
        file.unlink()


def test_the_best_way_counts_at_each_mix_and_size(measured):
    assert {(p.read_share, p.moved) for p in measured.best} == {
        (r, s) for r in (0, 0.5, 1) for s in (2**12, 2**14, 2**16)
    }
    assert {p.way for p in measured.best} == {"fast"}


def test_the_peak_is_the_best_library_copy(measured):
    seconds = 2 * (1e-6 + 2**15 / 4e9 + 2**15 / 2e9)
    assert measured.peak == pytest.approx(2**16 / seconds)


def test_the_time_at_a_mix_that_was_measured_and_one_between(measured):
    assert measured.seconds(Work(2**13, 2**13)) == pytest.approx(1e-6 + 2**13 / 4e9 + 2**13 / 2e9)
    assert measured.seconds(Work(3 * 2**12, 2**12)) == pytest.approx(1e-6 + 3 * 2**12 / 4e9 + 2**12 / 2e9)


def test_drift_is_seen(measured):
    assert limits.again(FakeDevice(slowdown=1.05), measured).drift == pytest.approx(0.05)


def test_what_is_not_there_any_more_is_not_measured_again(measured):
    class Other(FakeDevice):
        def streams(self) -> Iterator[Stream]:
            return (stream for stream in super().streams() if stream.reads)

    assert {p.read_share for p in limits.again(Other(), measured).end} == {0.5, 1}
    assert limits.again(FakeDevice(), Limits()) == Limits()


def test_streams_are_repeated_in_as_much_memory_as_before(measured, monkeypatch):
    # In less memory fewer sets of buffers have room, which the cache holds a larger part of: that would look faster.
    made: list[int] = []
    arena = limits._Arena
    monkeypatch.setattr(limits, "_Arena", lambda device, largest: made.append(largest) or arena(device, largest))
    limits.again(FakeDevice(), measured)
    limits.remember(FakeDevice().machine(), measured)
    limits.ready(FakeDevice(), Needs())
    assert made == [2**16, 2**16]


def test_works_need_peaks_of_their_operations_and_links_that_they_send_over():
    product = Work(flops=(("float16", 8), ("int8", 0)))
    assert Needs.of([]) == Needs()
    assert Needs.of([(product, 1), (Work(sent=4), 2), (Work(sent=4), 1), (Work(), 8)]) == Needs(
        kinds=("float16",), worlds=(2,)
    )


@pytest.mark.slow  # test_limits_measured.py has what is told
def test_progress_is_told():
    told: list[tuple[str, float]] = []
    limits.measure(FakeDevice(), EVERYTHING, lambda text, share: told.append((text, round(share, 2))))
    assert [share for _, share in told] == [0, 0.14, 0.29, 0.43, 0.57, 0.71, 0.86]
    words = [*["MB"] * 3, *["float"] * 3, "2 dev"]
    assert [word in text for (text, _), word in zip(told, words, strict=True)] == [True] * 7


def test_the_largest_streams_are_left_out_where_time_is_up():
    device = FakeDevice()
    device.stream_seconds = 0.0
    assert {p.moved for p in limits.measure(device, Needs()).points} == {2**12, 2**14}


def test_streams_move_random_numbers_everywhere(monkeypatch):
    monkeypatch.setattr(limits, "_RANDOM", 1000)
    data = limits._Arena(FakeDevice(), 2**16).data
    assert data.numel() == 2**14
    for part in data.split(1000):
        assert 0 <= part.min() < part.max() < 1
    assert data[:1000].unique().numel() > 900


def test_sizes_that_do_not_fit_are_left_out():
    device = FakeDevice()
    device.free_bytes = lambda: 2**15
    assert {p.moved for p in limits.measure(device, Needs()).points} == {2**12, 2**14}


def test_only_what_is_needed_is_measured():
    limits.measure(device := FakeDevice(), Needs())
    assert set(device.log) == {"stream"}
    limits.measure(device := FakeDevice(), Needs(streams=False, kinds=("float16",)))
    assert set(device.log) == {"float16"}
    limits.measure(device := FakeDevice(), Needs(streams=False, worlds=(2, 4)))
    assert set(device.log) == {"ring of 2", "ring of 4"}
    assert limits.ready(device := FakeDevice(), Needs(streams=False)) == Limits()
    assert device.log == []


@pytest.mark.slow  # test_limits_measured.py has what a burst and a load are
def test_peaks_of_compute_are_measured_in_a_burst_and_after_a_load():
    found = limits.measure(FakeDevice(), Needs(streams=False, kinds=("float32", "float16")))
    assert {(p.kind, p.m, p.n, p.k, p.state) for p in found.compute} == {
        *((kind, size, size, size, "burst") for kind in ("float32", "float16") for size in (64, 128)),
        *((kind, 64, 64, 64, "settled") for kind in ("float32", "float16")),
    }
    assert found.rate("float32") == pytest.approx(1e12)
    assert found.rate("float32", "settled") == pytest.approx(0.5e12)
    assert found.seconds(Work(flops=(("float32", 10**6),))) == pytest.approx(1e-6)


@pytest.mark.slow  # test_limits_measured.py has what a burst is
def test_a_burst_comes_after_a_rest(monkeypatch):
    rests: list[float] = []
    monkeypatch.setattr(limits.time, "sleep", rests.append)
    device = FakeDevice()
    device.idle_seconds = 0.2
    limits.measure(device, Needs(streams=False, kinds=("float32",)))
    assert rests == [0.2, 0.2]


@pytest.mark.slow  # test_only_what_is_needed_is_measured leaves kinds out
def test_kinds_that_the_device_lacks_are_left_out():
    found = limits.measure(FakeDevice(), EVERYTHING)
    assert {p.kind for p in found.compute} == {"float32", "float16"}
    assert found.rate("float8") is None


@pytest.mark.slow  # test_sizes_that_do_not_fit_are_left_out has streams
def test_products_and_transfers_that_do_not_fit_are_left_out():
    device = FakeDevice()
    device.free_bytes = lambda: 2 * 12 * 64**2
    found = limits.measure(device, Needs(streams=False, kinds=("float32",), worlds=(2,)))
    assert {p.m for p in found.compute} == {64}
    assert [p.sent for p in found.links] == [2**10]


def test_links_are_measured_by_the_number_of_devices():
    found = limits.measure(FakeDevice(), Needs(streams=False, worlds=(2,)))
    assert found.link(2) == pytest.approx(2**20 / (1e-6 + 2**20 / 1e9))
    assert found.link(4) is None


def test_what_is_missing():
    known = limits.measure(FakeDevice(), Needs(kinds=("float32",)))
    assert limits.missing(known, EVERYTHING) == Needs(streams=False, kinds=("float16", "float8"), worlds=(2,))
    assert limits.missing(Limits(), EVERYTHING) == EVERYTHING
    assert limits.missing(Limits(), Needs(streams=False)) == Needs(streams=False)


@one_test(("count", "worlds"), [(1, ()), (2, (2,)), (6, (2, 4, 6)), (8, (2, 4, 8))])
def test_everything(machine, count, worlds):
    needs = Needs.everything(replace(machine, devices=machine.devices * count))
    assert needs == Needs(True, COMPUTE_KINDS, worlds)


def test_a_second_run_measures_a_probe_and_no_more():
    first = limits.ready(one := FakeDevice(), Needs())
    second = limits.ready(two := FakeDevice(slowdown=1.005), Needs())
    assert second == first
    # One large stream of each mix.
    assert (len(one.log), len(two.log)) == (18, 3)


def test_a_probe_takes_the_best_of_several_rounds():
    limits.ready(FakeDevice(), Needs())
    device = FakeDevice()
    device.probe_rounds = 4
    runs = 0

    def batch(calls, **_) -> Batch:
        nonlocal runs
        runs += 1
        disturbed = 1.5 if runs % 4 else 1.0
        return Batch(lambda n: [disturbed * calls[0]() for _ in range(n)], 1, "host", 1e-3)

    device.batch = batch
    limits.ready(device, Needs())
    assert runs == 4 * 3


@pytest.mark.slow  # test_limits_measured.py has how far kept limits hold
@one_test(
    "device", [FakeDevice(slowdown=1.02), FakeDevice(slowdown=0.98), FakeDevice("beef"), FakeDevice(torch="2.14")]
)
def test_a_machine_that_changed_is_measured_anew(device):
    limits.ready(FakeDevice(), Needs(kinds=("float32",)))
    found = limits.ready(device, Needs())
    assert device.log.count("stream") >= 18
    assert limits.recall(device.machine()) == found
    assert found.compute == ()


def test_a_machine_may_be_as_noisy_as_its_kind_allows():
    limits.ready(FakeDevice(), Needs())
    device = FakeDevice(slowdown=1.05)
    device.probe_tolerance = 0.1
    limits.ready(device, Needs())
    assert len(device.log) == 3


def test_fresh_limits_are_measured_whatever_is_kept():
    limits.ready(FakeDevice(), Needs())
    found = limits.ready(device := FakeDevice(slowdown=1.005), Needs(), fresh=True)
    assert len(device.log) == 18
    assert limits.recall(device.machine()) == found


def test_only_what_is_not_known_yet_is_measured_and_kept_with_the_rest():
    streams = limits.ready(FakeDevice(), Needs())
    both = limits.ready(device := FakeDevice(), Needs(kinds=("float32",)))
    assert (device.log.count("stream"), set(device.log)) == (3, {"stream", "float32"})
    assert both.points == streams.points
    assert limits.recall(device.machine()) == both
    again = limits.ready(device := FakeDevice(), Needs(kinds=("float32",)))
    assert (again, set(device.log)) == (both, {"stream"})


def test_kept_limits_know_the_cache_of_the_machine():
    """The cache of the device that cases run on, the first one; without streams there is no cache to look through."""
    limits.ready(FakeDevice(), Needs())
    machine = FakeDevice().machine()
    other = replace(machine, devices=(*machine.devices, replace(machine.devices[0], cache_bytes=1)))
    assert limits.recall(other).cache_bytes == FakeDevice.cache_bytes
    assert limits.ready(FakeDevice(), Needs(streams=False, kinds=("float32",))).cache_bytes == 0


@pytest.mark.slow  # the tests above have what is kept
def test_a_run_gets_what_it_needs_and_nothing_that_is_kept_beside_it():
    everything = limits.ready(FakeDevice(), EVERYTHING)
    assert {p.kind for p in everything.compute} == {"float32", "float16"}
    assert limits.ready(FakeDevice(), Needs()) == Limits(everything.points, cache_bytes=FakeDevice.cache_bytes)
    some = limits.ready(FakeDevice(), Needs(kinds=("float16",)))
    assert {p.kind for p in some.compute} == {"float16"}
    assert some.links == ()


def test_limits_come_back_without_those_of_a_run_s_end(measured, machine):
    assert limits.recall(machine) is None
    limits.remember(machine, replace(measured, end=measured.points[:1]))
    assert limits.recall(machine) == replace(measured, cache_bytes=machine.devices[0].cache_bytes)


def test_without_streams_nothing_tells_whether_limits_hold(machine):
    limits.remember(machine, limits.measure(FakeDevice(), Needs(streams=False, kinds=("float32",))))
    assert limits.recall(machine) is None


@one_test(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "[]",
        lambda _: "",
        lambda text: json.dumps({**json.loads(text), "schema": 0}),
        lambda text: text.replace('"seconds"', '"secs"'),
    ],
)
def test_a_damaged_file_and_one_of_another_schema_are_measured_anew(cache_folder, damage):
    limits.ready(FakeDevice(), Needs())
    [file] = cache_folder.glob("limits-*")
    file.write_text(damage(file.read_text()))
    assert limits.recall(FakeDevice().machine()) is None
    found = limits.ready(device := FakeDevice(), Needs())
    assert len(device.log) == 18
    assert limits.recall(device.machine()) == found


def test_limits_that_cannot_be_kept_are_measured_all_the_same(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "file" / "cache"))
    assert limits.ready(FakeDevice(), Needs()).points


def test_points_of_one_stream_keep_their_share():
    assert StreamPoint(3 * 512, 512, 1.0, "w").read_share == 0.75
    assert Stream("w", 2, 1, lambda *_: print).read_share == 0.67
