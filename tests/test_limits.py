"""Ceilings: every mix and size is measured, some again, and they are remembered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import limits
from harness.devices import Batch, Stream
from harness.devices.cpu import Cpu
from harness.model import Ceilings, StreamPoint, Work


class FakeDevice(Cpu):
    """Reads at 4 GB/s, writes at 2 GB/s, after a microsecond; `slowdown` stretches everything."""

    cache_bytes = 2**12
    ceiling_sizes = (2**12, 2**14, 2**16)
    slowdown = 1.0

    def streams(self) -> Iterator[Stream]:
        for reads, writes in ((1, 0), (1, 1), (0, 1)):
            for way, factor in (("slow", 2.0), ("fast", 1.0)):
                yield Stream(way, reads, writes, self.prepare(factor), is_copy=(way, reads, writes) == ("slow", 1, 1))

    def prepare(self, factor: float):
        def prepare(sources, destinations):
            read, written = (sum(t.nbytes for t in tensors) for tensors in (sources, destinations))
            return lambda: factor * (1e-6 + read / 4e9 + written / 2e9)

        return prepare

    def batch(self, calls, *, capture: bool, keep: int, seconds: float, agree=float) -> Batch:
        return Batch(lambda n: [self.slowdown * calls[0]() for _ in range(n)], 1, "host", seconds)


@pytest.fixture
def measured() -> Ceilings:
    return limits.measure(FakeDevice())


def test_the_best_way_counts_at_each_mix_and_size(measured):
    assert {(p.read_share, p.moved) for p in measured.best} == {
        (r, s) for r in (0, 0.5, 1) for s in (2**12, 2**14, 2**16)
    }
    assert {p.way for p in measured.best} == {"fast"}


def test_the_peak_is_the_best_library_copy(measured):
    seconds = 2 * (1e-6 + 2**15 / 4e9 + 2**15 / 2e9)
    assert measured.peak == pytest.approx(2**16 / seconds)


def test_the_floor_at_a_mix_that_was_measured_and_one_between(measured):
    assert measured.seconds(Work(2**13, 2**13)) == pytest.approx(1e-6 + 2**13 / 4e9 + 2**13 / 2e9)
    assert measured.seconds(Work(3 * 2**12, 2**12)) == pytest.approx(1e-6 + 3 * 2**12 / 4e9 + 2**12 / 2e9)


def test_drift_is_seen(measured):
    device = FakeDevice()
    device.slowdown = 1.05
    assert limits.again(device, measured).drift == pytest.approx(0.05)


def test_progress_is_told():
    told: list[tuple[str, float]] = []
    limits.measure(FakeDevice(), lambda text, share: told.append((text, round(share, 2))))
    assert [share for _, share in told] == [0, 0.33, 0.67]
    assert "MB" in told[0][0]


def test_sizes_that_do_not_fit_are_left_out():
    device = FakeDevice()
    device.free_bytes = lambda: 2**15
    assert {p.moved for p in limits.measure(device).points} == {2**12, 2**14}


def test_remembered_ceilings_come_back(measured, machine):
    assert limits.recall(machine) is None
    limits.remember(machine, measured)
    assert limits.recall(machine) == Ceilings(measured.points)


def test_a_damaged_memory_is_forgotten(measured, machine, cache_folder):
    limits.remember(machine, measured)
    file = cache_folder / f"ceilings-{machine.kind}-{machine.fingerprint}.json"
    file.write_text(file.read_text()[:50])
    assert limits.recall(machine) is None
    file.unlink()


def test_the_real_processor():
    """One small size of every stream that the CPU offers, from a cache that is taken for a small one."""

    class Small(Cpu):
        cache_bytes = 2**16
        ceiling_sizes = (2**20,)

    found = limits.measure(Small())
    assert {p.read_share for p in found.best} == {0, 0.5, 0.67, 0.75, 1}
    assert all(1e8 < p.bandwidth < 1e13 for p in found.points)


@pytest.mark.gpu
def test_the_real_gpu():
    from harness.devices.cuda import Cuda

    device = Cuda()
    device.ceiling_sizes = (2**24, 2**28)
    found = limits.measure(device)
    assert {p.read_share for p in found.best} == {0, 0.5, 0.67, 0.75, 1}
    assert all(1e10 < p.bandwidth < 2e13 for p in found.points)
    assert abs(limits.again(device, found).drift) < 0.05


def test_points_of_one_stream_keep_their_share():
    assert StreamPoint(3 * 512, 512, 1.0, "w").read_share == 0.75
    assert Stream("w", 2, 1, lambda *_: print).read_share == 0.67
