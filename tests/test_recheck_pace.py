"""The time of calls where they are checked, beside the samples, by a clock that the tests move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness import measure, recheck
from harness.devices import Batch
from tests.one_test import one_test

MS = 1e-3


class Now:
    """A clock, which is the device's and the host's."""

    def __init__(self) -> None:
        self.seconds = 10.0
        self.waited = 0

    def monotonic(self) -> float:
        return self.seconds

    def mark(self) -> float:
        return self.seconds

    def between(self, marks: list[float]) -> list[float]:
        return [marks[1] - marks[0]]

    def synchronize(self) -> None:
        self.waited += 1


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(recheck, "time", now)
    return now


def paced(now: Now, batch: Batch, each: float = MS) -> tuple[float, list[int]]:
    """What `pace` gives for three sets whose calls take so long, and the sets in the order of their calls."""
    made: list[int] = []

    def call(place: int) -> None:
        made.append(place)
        now.seconds += each

    rotation: Any = SimpleNamespace(calls=[lambda place=place: call(place) for place in range(3)])
    device: Any = SimpleNamespace(clock=now, synchronize=now.synchronize)
    return recheck.pace(rotation, batch, device), made


def no_samples(_: int) -> list[float]:
    raise AssertionError("the whole batch would take too long")


def test_calls_rotate_as_in_a_batch_and_end_with_it(now):
    found, made = paced(now, Batch(lambda count: [7.0] * count, 4, "host", 1.0))
    assert (found, made, now.waited) == (7.0, [0, 1, 2, 0], 1), "then a sample is taken as the others were"


def test_calls_end_when_they_have_taken_long_enough(now):
    found, made = paced(now, Batch(no_samples, 501, "steady", 1.0), each=2 * MS)
    assert (found, made) == (pytest.approx(2 * MS), [0, 1, 2])
    assert paced(now, Batch(lambda count: [7.0] * count, 499, "steady", 1.0), each=2 * MS)[0] == 7.0


@pytest.mark.parametrize(("seconds", "samples"), [(MS, 7), (20 * MS, 1)])
def test_calls_that_are_timed_alone_are_timed_so_here(now, seconds, samples):
    asked: list[int] = []

    def run(count: int) -> list[float]:
        asked.append(count)
        return [3.0, 2.0, 4.0][:count]

    assert paced(now, Batch(run, 1, "launch", seconds))[0] == (2.0 if samples > 1 else 3.0)
    assert asked == [samples]


@one_test(
    ("checked", "usual", "longer"),
    [(1.6 * MS, MS, True), (1.5 * MS, MS, False), (9e-7, 5e-7, False), (1.1e-6, 5e-7, True), (5e-7, 0.0, False)],
)
def test_what_is_surely_longer(checked, usual, longer):
    assert measure._is_longer(checked, usual) == longer


def sampler(fresh: list[float], **parts: Any) -> Any:
    """A sampler whose samples took 1 ms, fresh: seconds of samples that come later."""
    made: Any = object.__new__(measure.Sampler)
    made.samples = [MS]
    made._session = SimpleNamespace(
        group=SimpleNamespace(size=parts.get("size", 1)),
        op=SimpleNamespace(inputs=parts.get("inputs", "x"), outputs=()),
        device=None,
    )
    made._rotation, made._batch = None, Batch(no_samples, 1, "host", 1.0, replay=parts.get("replay"))
    made._clocks = SimpleNamespace(run=lambda _, count: [fresh.pop(0)] * count)
    made.sample = lambda: made.samples.append(9 * MS)
    return made


@pytest.mark.parametrize("parts", [{"size": 2}, {"inputs": ()}, {"replay": print}])
def test_nothing_is_told_of_graphs_of_ranks_and_of_ops_without_tensors(monkeypatch, parts):
    monkeypatch.setattr(recheck, "pace", lambda *_: 9 * MS)
    assert sampler([], **parts)._pretended() is None


def test_a_suspicion_nine_times_in_a_row_is_told(monkeypatch):
    paces = [9 * MS] * 9
    monkeypatch.setattr(recheck, "pace", lambda *_: paces.pop())
    asked: list[int] = []
    made = sampler([])
    made._clocks = SimpleNamespace(run=lambda _, count: [MS] * (asked.append(count) or count))
    said = made._pretended()
    assert asked == [3] * 9, "few samples beside each of them"
    assert said.startswith("calls take 9.000 ms where they are checked, 1.000 ms in the samples")
    assert not paces


def test_one_time_as_in_the_samples_is_enough(monkeypatch):
    paces = [MS, *[9 * MS] * 8]
    monkeypatch.setattr(recheck, "pace", lambda *_: paces.pop())
    assert sampler([MS] * 8)._pretended() is None


def test_samples_are_taken_anew_where_they_too_would_take_longer_now(monkeypatch):
    monkeypatch.setattr(recheck, "pace", lambda *_: 9 * MS)
    made = sampler([9 * MS])
    assert made._pretended() is None
    assert made.samples == [9 * MS]


def test_the_limits_themselves_are_within_them(now, monkeypatch):
    """An eighth of a second a call: two are as long as allowed, and the whole batch of eight takes a second."""
    monkeypatch.setattr(recheck, "_WHILE", 0.25)
    asked: list[int] = []

    def run(count: int) -> list[float]:
        asked.append(count)
        return [7.0] * count

    assert paced(now, Batch(run, 8, "host", 1.0), each=0.125) == (7.0, [0, 1, 2])
    assert asked == [1]


def test_single_samples_that_took_long_count_for_nothing(monkeypatch):
    paces = [9 * MS] * 9
    monkeypatch.setattr(recheck, "pace", lambda *_: paces.pop())
    made = sampler([])
    made.samples = [MS, MS, 100 * MS]
    made._clocks = SimpleNamespace(run=lambda *_: [MS, MS, 100 * MS])
    assert made._pretended()
