"""Which launch wins a race, by times that the tests give; how a sample is taken, on a GPU that the tests play."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice

import pytest
import torch

from harness.cuda import racing
from harness.cuda.racing import HeldClock, fastest, rotated


def told(*launches: Iterator[float]) -> tuple[Callable[[int], float], Counter[int]]:
    """A clock that tells the next of a launch's times, and how often each launch was timed."""
    timed: Counter[int] = Counter()

    def seconds(place: int) -> float:
        timed[place] += 1
        return next(launches[place])

    return seconds, timed


def always(time: float) -> Iterator[float]:
    return (time for _ in count())


def about(time: float, share: float = 0.1) -> Iterator[float]:
    """Times whose median is `time`, and that lie up to a share off."""
    return (time * (1 + share * (place % 3 - 1)) for place in count())


def test_the_fastest_wins() -> None:
    assert fastest(3, told(always(3.0), always(1.0), always(2.0))[0]) == 1
    assert fastest(1, told(always(3.0))[0]) == 0


@pytest.mark.parametrize(("share", "winner"), [(0.0, 1), (0.01, 1), (0.1, 0)])
def test_the_first_stays_unless_another_is_surely_faster(share: float, winner: int) -> None:
    assert fastest(2, told(about(1.05, share), about(1.0, share))[0]) == winner


def test_a_launch_that_was_lucky_at_first_must_be_fast_again() -> None:
    lucky = iter([0.5] * 3 + [2.0] * 100)
    assert fastest(3, told(always(1.5), lucky, always(1.4))[0]) == 2


def test_the_first_is_timed_to_the_end_even_if_it_seemed_slow() -> None:
    seconds, timed = told(iter([9.0] * 3 + [0.5] * 100), *(always(1.0 + place) for place in range(9)))
    assert fastest(10, seconds) == 0
    assert timed[0] == timed[1] > timed[9]
    assert len([place for place, times in timed.items() if times == timed[0]]) == 5


def test_launches_are_timed_in_turns() -> None:
    order: list[int] = []

    def seconds(place: int) -> float:
        order.append(place)
        return 1.0

    fastest(3, seconds)
    assert order[:6] == [0, 1, 2, 0, 1, 2]


class Gpu:
    """A GPU of a clock rate of 1 Hz. host: seconds that the host takes to queue a call, which takes `call` seconds."""

    def __init__(self, host: float, call: float) -> None:
        self.host, self.call = host, call
        self.now, self.busy_until = 0.0, 0.0
        self.held: list[int] = []
        self.numbers: list[int] = []

    def sleep(self, cycles: int) -> None:
        self.held.append(cycles)
        self.busy_until = max(self.now, self.busy_until) + cycles

    def launch(self, _place: int, number: int) -> None:
        self.numbers.append(number)
        self.now += self.host
        self.busy_until = max(self.now, self.busy_until) + self.call

    def event(self, **_: object) -> Event:
        return Event(self)


class Event:
    """An event of this GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.now, self.gpu.busy_until)

    def query(self) -> bool:
        return self.gpu.now >= self.at

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.at)

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1e3


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], Gpu]:
    def made(host: float, call: float) -> Gpu:
        found = Gpu(host, call)
        monkeypatch.setattr(torch.cuda, "_sleep", found.sleep, raising=False)
        monkeypatch.setattr(torch.cuda, "Event", found.event)
        return found

    return made


def test_the_gpu_is_held_until_the_host_has_queued_a_sample(gpu: Callable[[float, float], Gpu]) -> None:
    slow_host = gpu(2.0**16, 1.0)
    clock = HeldClock(slow_host.launch, iter(count()), calls=8)
    assert clock(0) == pytest.approx(1.0)
    assert slow_host.held == [2**18, 2**19, 2**20]
    assert clock(0) == pytest.approx(1.0)
    assert slow_host.held[3:] == [2**20]


def test_a_host_that_waits_for_each_call_is_not_waited_for_forever(gpu: Callable[[float, float], Gpu]) -> None:
    blocked = gpu(2.0**30, 1.0)
    assert HeldClock(blocked.launch, iter(count()))(0) > 0
    assert blocked.held[-1] == 2**26


@pytest.mark.parametrize(("call", "calls"), [(1e-6, 32), (1e-4, 10), (0.1, 1)])
def test_a_sample_takes_a_millisecond_or_one_call(gpu: Callable[[float, float], Gpu], call: float, calls: int) -> None:
    assert HeldClock.of(gpu(0.0, call).launch, 1).calls == pytest.approx(calls, abs=1)


def test_sets_of_buffers_take_turns_across_samples(gpu: Callable[[float, float], Gpu]) -> None:
    played = gpu(0.0, 1e-4)
    clock = HeldClock.of(played.launch, 7)
    clock(0)
    clock(1)
    assert played.numbers == [*islice((number % 7 for number in count()), 1 + 2 * clock.calls)]


def properties(monkeypatch: pytest.MonkeyPatch, cache: int) -> None:
    chip = type("Properties", (), {"L2_cache_size": cache})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: chip)


def test_sets_are_four_times_the_cache_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    properties(monkeypatch, 1000)
    x, y = torch.arange(200, dtype=torch.int32)[1:].view(1, 199), torch.ones(51, dtype=torch.float16)
    sets = rotated((x, y, None))
    assert len(sets) == -(-4000 // (199 * 4 + 102))
    assert sets[0][0] is x
    for first, second, none in sets[1:]:
        assert none is None
        assert first is not None
        assert second is not None
        assert torch.equal(first, x)
        assert torch.equal(second, y)
        assert first.data_ptr() % 64 == x.data_ptr() % 64
        assert first.is_contiguous()
    assert len({one[0].data_ptr() for one in sets if one[0] is not None}) == len(sets)


def test_tensors_larger_than_the_cache_are_not_copied_and_small_ones_not_endlessly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties(monkeypatch, 1000)
    assert len(rotated([torch.ones(4000, dtype=torch.int8)])) == 1
    assert len(rotated([torch.ones(3999, dtype=torch.int8)])) == 2
    properties(monkeypatch, 10**9)
    assert len(rotated([torch.ones(1)])) == racing._MOST_SETS


@pytest.mark.gpu
@pytest.mark.alone
def test_on_a_gpu_small_calls_are_not_as_slow_as_the_host() -> None:
    """Each call has a kernel of three microseconds at most, and takes the host longer."""
    x = torch.ones(1, device="cuda")

    def launch(place: int, _number: int) -> None:
        sum(range(5000))  # the host takes some 50 us
        for _ in range(1 + 20 * place):
            x.add_(1)

    clock = HeldClock.of(launch, 1)
    one, many = (statistics.median(clock(place) for _ in range(5)) for place in (0, 1))
    assert one < 10e-6
    assert many > 5 * one
    assert fastest(2, clock) == 0
