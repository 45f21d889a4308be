"""The device's time beside the host's: what is found, and what isn't taken for a fault."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness import clocks
from harness.clocks import Clocks, left_behind
from harness.devices import Batch
from harness.devices.cpu import Cpu
from tests.one_test import one_test


class FakeClock:
    """What a device tells of its own time."""

    def __init__(self, device: FakeGpu) -> None:
        self._device = device

    def mark(self) -> float:
        return self._device.told

    def between(self, marks: Sequence[float]) -> list[float]:
        return [marks[1] - marks[0]]


class FakeGpu(Cpu):
    """A device whose clock tells a share of what it does. host: seconds of rounds. left: seconds that it works on."""

    is_asynchronous = True

    def __init__(self, host: Sequence[float], share: float = 1.0, left: Sequence[float] = (0.0,)) -> None:
        self.now = self.told = 0.0
        self.host, self.share, self.left = list(host), share, list(left)
        self.rounds = 0
        self.pending = 0.0
        self.clock = FakeClock(self)

    def synchronize(self) -> None:
        self.now += self.pending
        self.pending = 0.0

    def run(self, count: int) -> list[float]:
        took = self.host[self.rounds % len(self.host)]
        self.now += took
        self.told += self.share * min(self.host)
        self.pending += self.left[self.rounds % len(self.left)]
        self.rounds += 1
        return [took / count] * count


def complaint(monkeypatch: pytest.MonkeyPatch, device: FakeGpu, rounds: int, **may: bool) -> str | None:
    monkeypatch.setattr(clocks, "perf_counter", lambda: device.now)
    watched = Clocks(device)
    for _ in range(rounds):
        watched.run(Batch(device.run, 1, "graph", 1e-3), 10)
    return watched.complaint(**may)


@pytest.mark.parametrize("rounds", [1, 4])
def test_clocks_that_agree(monkeypatch, rounds):
    assert complaint(monkeypatch, FakeGpu([0.05]), rounds) is None


@pytest.mark.parametrize(
    ("share", "rounds", "found"),
    [
        (0.2, 1, True),
        (0.2, 4, True),
        (0.75, 4, True),
        (0.75, 1, False),
        (0.9, 4, False),
        # A fifth more is let pass where three rounds are alike, a half where there are fewer.
        (1 / 1.19, 3, False),
        (1 / 1.21, 3, True),
        (1 / 1.49, 2, False),
        (1 / 1.51, 2, True),
    ],
)
def test_a_clock_that_tells_a_share(monkeypatch, share, rounds, found):
    said = complaint(monkeypatch, FakeGpu([0.05], share), rounds)
    assert (said is not None) == found
    if said:
        assert f"took 50.00 ms by the host's clock took {50 * share:.2f} ms by the device's" in said


@pytest.mark.parametrize(("host", "found"), [(9.8e-3, False), (10.2e-3, True)])
def test_a_host_may_be_held_up_for_5_ms_in_a_round(monkeypatch, host, found):
    """The device tells half of it."""
    assert (complaint(monkeypatch, FakeGpu([host], 0.5), 4) is not None) == found


def test_of_rounds_the_one_counts_in_which_the_clocks_are_nearest(monkeypatch):
    """A long round that is told is better than a short one of which a part isn't."""
    device = FakeGpu([0.03, 0.1])
    monkeypatch.setattr(clocks, "perf_counter", lambda: device.now)
    watched = Clocks(device)

    def run(_: int) -> list[float]:
        took, told = ((0.03, 0.01), (0.1, 0.1))[device.rounds % 2]
        device.now += took
        device.told += told
        device.rounds += 1
        return [took]

    for _ in range(4):
        watched.run(Batch(run, 1, "graph", 1e-3), 1)
    assert watched.complaint() is None


def test_a_round_begins_when_the_device_is_idle(monkeypatch):
    """What was issued before is in neither time."""
    device = FakeGpu([0.05])
    monkeypatch.setattr(clocks, "perf_counter", lambda: device.now)
    watched = Clocks(device)
    for _ in range(4):
        device.pending = 1.0
        assert watched.run(Batch(device.run, 1, "graph", 1e-3), 10) == pytest.approx([5e-3] * 10)
    assert watched.complaint() is None


def test_a_host_that_is_held_up_in_some_rounds(monkeypatch):
    assert complaint(monkeypatch, FakeGpu([0.05, 0.09, 0.2, 0.05]), 4) is None


@pytest.mark.parametrize(
    ("left", "rounds", "found"),
    [
        ([0.004], 4, True),
        ([0.004], 1, False),
        ([0.05], 1, True),
        ([0.004, 0.0], 4, False),
        ([2e-4], 4, False),
        # Up to 5% of a round of 50 ms; where there are fewer than three rounds, 5 ms.
        ([0.0024], 3, False),
        ([0.0026], 3, True),
        ([0.0049], 2, False),
        ([0.0051], 2, True),
    ],
)
def test_work_that_goes_on_after_the_calls(monkeypatch, left, rounds, found):
    said = complaint(monkeypatch, FakeGpu([0.05], left=left), rounds)
    assert (said is not None) == found
    assert said is None or "after the calls have ended" in said


def test_calls_that_may_leave_work_behind(monkeypatch):
    assert complaint(monkeypatch, FakeGpu([0.05], left=[0.05]), 3, may_leave=True) is None
    told = complaint(monkeypatch, FakeGpu([0.05], share=0.2, left=[0.05]), 3, may_leave=True)
    assert "by the host's clock" in str(told)


@pytest.mark.parametrize(("left", "found"), [(0.49e-3, False), (0.51e-3, True)])
def test_the_host_notices_the_end_of_short_rounds_within_half_a_millisecond(monkeypatch, left, found):
    assert (complaint(monkeypatch, FakeGpu([1e-3], left=[left]), 4) is not None) == found


def test_a_device_that_calls_wait_for_is_not_looked_at(monkeypatch):
    device = FakeGpu([0.05], 0.1)
    device.is_asynchronous = False
    assert complaint(monkeypatch, device, 4) is None


@one_test(
    ("loops", "found"),
    [
        ([(0.1, 100)], False),
        ([(0.149, 100)], False),
        ([(0.2, 100)], True),
        ([(0.2, 100), (0.1, 100)], False),
        # A half more, and 2 ms.
        ([(0.1519, 100)], False),
        ([(0.1521, 100)], True),
    ],
)
def test_calls_in_a_loop_leave_no_more_than_they_take(loops, found):
    """A call takes a millisecond by its samples."""
    said = left_behind(loops, [0.9e-3, 1e-3, 1.7e-3])
    assert (said is not None) == found
    assert said is None or "after 100 calls were issued, which by their times take 100.0 ms" in said
