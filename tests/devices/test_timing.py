"""How calls are timed, on a device whose time passes only where a test says so."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from harness.devices import Batch
from harness.devices._timing import HostClock, estimate
from harness.devices.cuda import Cuda
from harness.model import Timer
from harness.ranks import ALONE
from tests.one_test import one_test

MILLI, MICRO = 1e-3, 1e-6
FLUSH = -1


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
        self.filled: list[int] = []  # how many calls there had been each time

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

    def _fill_queues(self):
        self.filled.append(len(self.made))

    def _flush(self):
        def flush() -> None:
            self.made.append(FLUSH)
            self.clock.now += 30 * MICRO

        return flush


@one_test("first", [25 * MILLI, 3.0])
@one_test("sets", [1, 4])
def test_a_first_call_that_loads_a_kernel_is_not_taken_for_the_time_of_a_call(first, sets):
    batch = FakeCuda([first, 5 * MICRO]).timed("graph", sets)
    assert batch.timer == "graph"
    assert batch.run(3) == pytest.approx([5 * MICRO] * 3)
    # 5 ms hold 1000 calls of 5 us: the size of the graph doesn't rest on the first call either.
    assert batch.calls == pytest.approx(1000, rel=0.01)


@one_test("timer", ["graph", "launch", "steady", "host"])
def test_queues_are_filled_before_the_first_call(timer):
    device = FakeCuda([5 * MICRO])
    device.synchronize = lambda: None
    device.timed(timer)
    assert device.made
    assert device.filled == [0]


def test_one_slow_call_later_on_does_not_make_calls_long():
    batch = FakeCuda([5 * MICRO, 5 * MICRO, 5 * MICRO, 1.0, 5 * MICRO]).timed("graph", 4)
    assert (batch.timer, batch.calls) == ("graph", pytest.approx(1000, rel=0.01))


def test_calls_that_are_long_again_are_timed_one_by_one_and_made_seldom():
    device = FakeCuda([25 * MILLI])
    batch = device.timed("graph", 4)
    assert (batch.timer, batch.calls, batch.not_captured) == ("launch", 1, "")
    assert len([name for name in device.made if name != FLUSH]) <= 3
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


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_replay_of_each_round_is_not_timed(count):
    """It waits for the host, while later ones queue up behind each other."""
    device = FakeCuda([10 * MICRO])
    batch = device.timed("graph", 2, seconds=40 * MICRO)
    assert (batch.calls, batch.seconds) == (4, pytest.approx(40 * MICRO))
    assert len(device.made) == 10 + 2 * batch.calls  # the estimate's calls, and a replay before the one that is timed
    device.made.clear()
    device.script = [*[MILLI] * batch.calls, 10 * MICRO]
    assert batch.run(count) == pytest.approx([10 * MICRO] * count)
    assert device.made == [0, 1] * (2 * (count + 1))
    device.made.clear()
    assert batch.replay
    batch.replay()
    assert device.made == [0, 1, 0, 1]


def test_the_cache_is_flushed_before_each_call_that_is_timed_alone_and_not_in_its_time():
    device = FakeCuda([10 * MICRO, 20 * MICRO, 30 * MICRO, 40 * MICRO] * 10)
    batch = device.timed("launch", 3)
    # Two calls and the mean of eight say how long a call takes; six more warm up.
    assert device.made == [n % 3 for n in range(10)] + [n for call in range(6) for n in (FLUSH, call % 3)]
    device.made.clear()
    assert batch.run(4) == pytest.approx([10 * MICRO, 20 * MICRO, 30 * MICRO, 40 * MICRO])
    assert device.made == [FLUSH, 0, FLUSH, 1, FLUSH, 2, FLUSH, 0]
    assert (batch.calls, batch.replay) == (1, None)
    assert batch.seconds == pytest.approx(20 * MICRO)  # the second call alone, less than the mean of later ones


@pytest.mark.parametrize(("sets", "warm"), [(1, 2), (4, 8), (9, 8)])
def test_calls_timed_alone_are_made_a_few_times_before(sets, warm):
    device = FakeCuda([5 * MICRO])
    device.timed("launch", sets)
    assert device.made.count(FLUSH) == warm


@pytest.mark.parametrize(("seconds", "warm"), [(19 * MILLI, 2), (21 * MILLI, 1)])
def test_long_calls_are_made_once_before(seconds, warm):
    device = FakeCuda([seconds])
    device.timed("launch")
    assert device.made.count(FLUSH) == warm


@pytest.mark.parametrize(("call", "told"), [(5 * MICRO, 5 * MICRO), (0.1 * MICRO, 1 * MICRO), (21 * MILLI, 21 * MILLI)])
def test_the_estimate_of_a_call(call, told):
    """At least 1 us, since a graph would hold too many calls. What is long isn't made ten times."""
    device = FakeCuda([MILLI, call])
    calls = [device.call(n) for n in range(3)]
    assert estimate(device.clock, calls, ALONE) == pytest.approx(told)
    assert device.made == [n % 3 for n in range(2 if call > 20 * MILLI else 10)]


def test_the_estimate_is_the_second_call_or_the_mean_of_the_eight_after_it():
    for script, told in (([1.0, 9 * MICRO, *[8 * MICRO, 4 * MICRO] * 4], 6), ([1.0, 5 * MICRO, *[7 * MICRO] * 8], 5)):
        device = FakeCuda(script)
        assert estimate(device.clock, [device.call()], ALONE) == pytest.approx(told * MICRO)


@pytest.mark.parametrize("timer", ["host", "launch", "steady"])
@pytest.mark.parametrize(("keep", "alive"), [(0, 1), (1, 1), (3, 3)])
def test_the_last_outputs_are_kept_so_that_later_calls_get_other_memory(monkeypatch, timer, keep, alive):
    class Output:
        pass

    made: list[weakref.ref[Output]] = []
    device = FakeCuda([MILLI])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    issue = device.call()

    def call() -> Output:
        issue()
        output = Output()
        made.append(weakref.ref(output))
        return output

    batch = device.batch([call] * 4, timer=timer, keep=keep, seconds=5 * MILLI, group=ALONE)
    batch.run(5)
    assert [one() is not None for one in made] == [False] * (len(made) - alive) + [True] * alive


def test_a_sample_on_the_host_ends_when_the_device_has_done_its_work(monkeypatch):
    device = FakeCuda([2 * MILLI])
    waiting: list[float] = []
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)

    def synchronize() -> None:
        device.clock.now += sum(waiting)
        waiting.clear()

    monkeypatch.setattr(device, "synchronize", synchronize)
    batch = device.batch([lambda: waiting.append(2 * MILLI)], timer="host", keep=1, seconds=5 * MILLI, group=ALONE)
    assert (batch.calls, batch.seconds) == (3, pytest.approx(6 * MILLI))
    assert batch.run(2) == pytest.approx([2 * MILLI] * 2)
    assert batch.replay is None


def test_the_first_call_on_the_host_is_not_timed_and_a_slow_one_is_tried_again(monkeypatch):
    """An estimate begins with one call, and doubles their number until they take a millisecond."""
    device = FakeCuda([1.0, *[0.25 * MILLI] * 3, 15 * MILLI, *[0.25 * MILLI] * 3, 0.25 * MILLI])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    batch = device.timed("host")
    assert len(device.made) == 1 + (1 + 2 + 4) + 4
    assert (batch.calls, batch.seconds) == (20, pytest.approx(5 * MILLI))


def test_calls_on_the_host_that_are_long_are_not_tried_again(monkeypatch):
    device = FakeCuda([21 * MILLI])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    assert device.timed("host").calls == 1
    assert len(device.made) == 2


@pytest.mark.parametrize(("change", "blocks"), [(1.019, 3), (1.021, 6)])
def test_steady_blocks_agree_when_they_differ_by_less_than_two_percent(change, blocks):
    """Three blocks are made at a time, of which two are compared, each of a call of 30 ms here."""
    device = FakeCuda([*[30 * MILLI] * 2, 30 * MILLI, 30 * MILLI, 30 * MILLI * change])
    device.timed("steady")
    assert len(device.made) == 2 + blocks


@pytest.mark.parametrize(("seconds", "made"), [(5 * MILLI, 1 + (1 + 2 + 4) + 4), (0.4 * MILLI, 1 + (1 + 2) + 2)])
def test_calls_on_the_host_are_estimated_by_a_millisecond_or_by_a_sample(monkeypatch, seconds, made):
    device = FakeCuda([0.25 * MILLI])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: device.clock.now)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    device.timed("host", seconds=seconds)
    assert len(device.made) == made


def test_steady_calls_that_never_agree_are_repeated_for_two_seconds(monkeypatch):
    device = FakeCuda([30 * MILLI, 40 * MILLI] * 1000)
    monkeypatch.setattr("harness.devices._timing.time.monotonic", lambda: device.clock.now)
    device.timed("steady")
    assert 2 <= device.clock.now < 2.25


@one_test(
    ("sets", "call", "seconds", "calls"),
    [
        (4, 10 * MILLI, 5 * MILLI, 4),
        (4, 10 * MILLI, 45 * MILLI, 8),
        (99, 10 * MILLI, 5 * MILLI, 99),
        (101, 10 * MILLI, 15 * MILLI, 2),  # a pass takes more than a second
        (4, 21 * MILLI, 50 * MILLI, 3),
        (1, 0.1 * MICRO, 5 * MILLI, 5000),  # no call counts as shorter than 1 us
    ],
)
def test_the_calls_of_a_steady_block(sets, call, seconds, calls):
    batch = FakeCuda([call]).timed("steady", sets, seconds)
    assert (batch.calls, batch.seconds) == (calls, pytest.approx(calls * max(call, MICRO)))


@pytest.mark.parametrize(("settled", "calls"), [(12 * MICRO, 417), (17 * MICRO, 167)])
def test_steady_blocks_that_come_out_less_than_half_as_long_are_made_longer(settled, calls):
    """By an estimate of 30 us a call, 5 ms are 167 calls."""
    assert FakeCuda([*[30 * MICRO] * 10, settled]).timed("steady").calls == calls


def test_the_clock_of_the_host(monkeypatch):
    reads = iter([1.0, 3.5, 3.75])
    monkeypatch.setattr("harness.devices._timing.time.perf_counter", lambda: next(reads))
    clock = HostClock()
    assert clock.between([clock.mark(), clock.mark(), clock.mark()]) == [2.5, 0.25]
