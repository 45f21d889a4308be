"""Time that goes on only when all threads of a pipeline wait, so that no test has to wait for a time.

And the processes that decode, which have torch from the server that forks for all tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from multiprocessing import util
from types import SimpleNamespace

import pytest

from harness.collection.steps.pipeline import _facts, _stages
from tests.forked.forkserver import forking

LIMIT = 30.0
"""Seconds after which a thread that still waits makes a test fail. No test that passes comes near it."""


@pytest.fixture(scope="session", autouse=True)
def forked_decoders() -> Iterator[None]:
    """Processes that decode are forked without an import of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(util, "spawnv_passfds", forking(util.spawnv_passfds))
        yield


class Clock:
    """The clock of a pipeline's threads. threads: how many there are, with the thread of the test."""

    def __init__(self, threads: int) -> None:
        self.now = 0.0
        self._busy = threads
        self._asleep: list[float] = []
        self._changed = threading.Condition()
        self._stopped = False

    def sleep(self, seconds: float) -> None:
        """Go on when this time has passed for all threads."""
        with self._changed:
            until = self.now + seconds
            self._asleep.append(until)
            self._rest()
            assert self._changed.wait_for(lambda: self._stopped or until <= self.now, LIMIT)

    def settle(self, at_work: int = 0) -> None:
        """Go on when all other threads wait for a queue, except `at_work` threads, which are at work."""
        with self._changed:
            self._rest()
            assert self._changed.wait_for(lambda: self._busy == at_work, LIMIT)
            self._busy += 1

    def stop(self) -> None:
        """Nobody sleeps any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def condition(self) -> Condition:
        return Condition(self)

    def rest(self) -> None:
        """A thread begins to wait."""
        with self._changed:
            self._rest()

    def go_on(self, threads: int) -> None:
        """Threads that waited are about to go on."""
        with self._changed:
            self._busy += threads

    def _rest(self) -> None:
        self._busy -= 1
        if self._busy == 0 and self._asleep:
            self.now = min(self._asleep)
            self._busy = self._asleep.count(self.now)
            self._asleep = [until for until in self._asleep if until != self.now]
        self._changed.notify_all()


class Condition(threading.Condition):
    """Tells a clock which threads wait."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._resting = clock, 0

    def wait(self, timeout: float | None = None) -> bool:
        self._resting += 1
        self._clock.rest()
        woken = super().wait(LIMIT if timeout is None else timeout)
        assert woken or timeout is not None, "a thread waits in vain"
        return woken

    def notify_all(self) -> None:
        self._clock.go_on(self._resting)
        self._resting = 0
        super().notify_all()


@pytest.fixture
def start_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Clock]:
    """start_clock(threads) makes a clock, which queues and code that measures times have from then on."""

    def start(threads: int) -> Clock:
        clock = Clock(threads)
        fake = SimpleNamespace(perf_counter=lambda: clock.now)
        monkeypatch.setattr(_stages, "threading", SimpleNamespace(**vars(threading) | {"Condition": clock.condition}))
        monkeypatch.setattr(_stages, "time", fake)
        monkeypatch.setattr(_facts, "time", fake)
        return clock

    return start
