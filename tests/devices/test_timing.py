"""How calls are timed, on a device whose time passes only where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from harness.devices import Batch
from harness.devices.cuda import Cuda
from harness.model import Timer
from harness.ranks import ALONE

MILLI, MICRO = 1e-3, 1e-6


class FakeClock:
    """Time that the calls of a test let pass. waits: how often somebody waited for the device."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits = 0

    def mark(self) -> float:
        return self.now

    def between(self, marks: Sequence[float]) -> list[float]:
        self.waits += 1
        return [later - earlier for earlier, later in pairwise(marks)]


class FakeCuda(Cuda):
    """A GPU on whose clock each call takes the next of `script`, and the last one from then on."""

    cache_bytes = 2**20

    def __init__(self, script: Sequence[float], refuses: Exception | None = None) -> None:
        self.clock: FakeClock = FakeClock()
        self.script = list(script)
        self.refuses = refuses
        self.made: list[int] = []

    def call(self, name: int = 0) -> Callable[[], None]:
        def made() -> None:
            self.made.append(name)
            self.clock.now += self.script.pop(0) if len(self.script) > 1 else self.script[0]

        return made

    def timed(self, timer: Timer, sets: int = 1, seconds: float = 5 * MILLI) -> Batch:
        return self.batch([self.call(i) for i in range(sets)], timer=timer, keep=1, seconds=seconds, group=ALONE)

    def _capture(self, calls, rounds, keep, group):
        if self.refuses:
            raise self.refuses
        return lambda: [call() for _ in range(rounds) for call in calls]

    def _flush(self):
        return lambda: None


@pytest.mark.parametrize("first", [25 * MILLI, 3.0])
@pytest.mark.parametrize("sets", [1, 4])
def test_a_first_call_that_loads_a_kernel_is_not_taken_for_the_time_of_a_call(first, sets):
    batch = FakeCuda([first, 5 * MICRO]).timed("graph", sets)
    assert batch.timer == "graph"
    assert batch.run(3) == pytest.approx([5 * MICRO] * 3)
    # 5 ms hold 1000 calls of 5 us: the size of the graph doesn't rest on the first call either.
    assert batch.calls == pytest.approx(1000, rel=0.01)


def test_one_slow_call_later_on_does_not_make_calls_long():
    batch = FakeCuda([5 * MICRO, 5 * MICRO, 5 * MICRO, 1.0, 5 * MICRO]).timed("graph", 4)
    assert (batch.timer, batch.calls) == ("graph", pytest.approx(1000, rel=0.01))


def test_calls_that_are_long_again_are_timed_one_by_one_and_made_seldom():
    device = FakeCuda([25 * MILLI])
    batch = device.timed("graph", 4)
    assert (batch.timer, batch.calls, batch.not_captured) == ("launch", 1, "")
    assert len(device.made) <= 3
    assert batch.run(2) == pytest.approx([25 * MILLI] * 2)


def test_a_call_is_long_from_20_ms_on():
    assert FakeCuda([19 * MILLI]).timed("graph").timer == "graph"


def test_the_reason_why_calls_cannot_be_captured_is_told_in_one_line():
    device = FakeCuda([5 * MICRO], RuntimeError("operation not permitted when stream is capturing\nSearch for ..."))
    batch = device.timed("graph", 2)
    assert batch.timer == "launch"
    assert batch.not_captured == "operation not permitted when stream is capturing"
    assert batch.run(2) == pytest.approx([5 * MICRO] * 2)


def test_an_error_without_words_is_a_reason_too():
    assert FakeCuda([5 * MICRO], NotImplementedError()).timed("graph").not_captured == "NotImplementedError"


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), RuntimeError("CUDA error: out of memory")],
)
def test_out_of_memory_is_no_reason_to_launch_one_by_one(error):
    with pytest.raises(RuntimeError, match="out of memory"):
        FakeCuda([5 * MICRO], error).timed("graph")


@pytest.mark.parametrize(("sets", "timer"), [(99, "graph"), (101, "launch")])
def test_a_graph_holds_no_pass_that_takes_seconds(sets, timer):
    """Little data has up to 1024 sets of buffers: a pass of calls of 10 ms would take ten seconds, and a sample too."""
    batch = FakeCuda([10 * MILLI]).timed("graph", sets)
    assert (batch.timer, batch.not_captured) == (timer, "")
    assert batch.seconds < 1


def test_steady_blocks_of_slow_calls_on_little_data_are_no_whole_passes():
    device = FakeCuda([10 * MILLI])
    batch = device.timed("steady", 1000, seconds=45 * MILLI)
    assert (batch.calls, batch.seconds) == (5, pytest.approx(50 * MILLI))
    device.made.clear()
    batch.run(3)
    assert all((a + 1) % 1000 == b for a, b in pairwise(device.made))


def test_who_asks_for_no_graph_gets_none():
    batch = FakeCuda([5 * MICRO], AssertionError("it was tried")).timed("launch")
    assert (batch.timer, batch.not_captured) == ("launch", "")


def test_steady_samples_are_means_of_blocks_without_a_wait_between_them():
    device = FakeCuda([*[20 * MICRO] * 10, *[10 * MICRO, 30 * MICRO] * 10_000])
    batch = device.timed("steady", 2, seconds=1 * MILLI)
    assert batch.timer == "steady"
    assert batch.calls % 2 == 0
    waits, made = device.clock.waits, len(device.made)
    assert batch.run(7) == pytest.approx([20 * MICRO] * 7)
    assert device.clock.waits - waits == 1
    # A block before the first sample fills the queue that the last wait has emptied.
    assert len(device.made) - made == 8 * batch.calls
    assert batch.seconds == pytest.approx(1 * MILLI, rel=0.5)


def test_steady_calls_are_repeated_until_blocks_agree():
    """The queue of a pipeline fills up over the first 100 calls, each of which takes 3% less than the last."""
    warming = [100 * MICRO * 0.97 ** (n - 100) for n in range(100)]
    batch = FakeCuda([*warming, 100 * MICRO]).timed("steady", seconds=1 * MILLI)
    assert batch.run(3) == pytest.approx([100 * MICRO] * 3, rel=0.02)
    assert batch.seconds == pytest.approx(1 * MILLI, rel=0.5)


def test_steady_blocks_are_long_enough_whatever_the_first_calls_took():
    batch = FakeCuda([*[30 * MILLI] * 3, 10 * MICRO]).timed("steady", 2)
    assert batch.calls == pytest.approx(500, rel=0.01)
    assert batch.seconds == pytest.approx(5 * MILLI, rel=0.01)


def test_steady_calls_rotate_over_the_sets_across_blocks():
    device = FakeCuda([25 * MILLI])
    batch = device.timed("steady", 3)
    assert batch.calls == 1  # one long call a block
    device.made.clear()
    batch.run(5)
    assert all((a + 1) % 3 == b for a, b in pairwise(device.made))


def test_the_time_of_steady_calls_is_that_from_first_to_last():
    device = FakeCuda([*[1 * MILLI, 2 * MILLI, 6 * MILLI] * 400])
    batch = device.timed("steady", 3)
    before = device.clock.now
    samples = batch.run(4)
    elapsed = device.clock.now - before
    assert sum(samples) * batch.calls == pytest.approx(elapsed * 4 / 5)


@pytest.mark.parametrize(
    ("sets", "call", "calls"),
    [
        (4, 1 * MILLI, 8),  # whole passes, where a pass is short
        (100, 1 * MILLI, 5),  # a part of a pass, where a pass takes longer than the sample
        (3, 70 * MILLI, 1),
    ],
)
def test_a_sample_on_the_host_goes_on_in_the_rotation(monkeypatch, sets, call, calls):
    device = FakeCuda([call])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    batch = device.timed("host", sets)
    assert (batch.timer, batch.calls, batch.seconds) == ("host", calls, pytest.approx(calls * call))
    before = len(device.made)
    assert batch.run(30) == pytest.approx([call] * 30)
    assert len(device.made) == before + 30 * calls
    # No set of buffers comes again before all other sets had their turn.
    assert device.made == [i % sets for i in range(len(device.made))]
