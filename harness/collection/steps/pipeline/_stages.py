"""Stages of a pipeline, each with a thread of its own, and the bounded queues between them. No torch is needed here."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from harness.errors import described

Work = Callable[[Any], Any]
DEPTH = 2
"""Batches in a queue between two stages that overlap."""


class QueueClosed(Exception):  # noqa: N818 - it ends a loop, and isn't an error
    """The queue was closed, so nothing goes in or comes out any more."""


class StageError(RuntimeError):
    """A stage failed. The message begins with the stage's name."""


@contextmanager
def named(stage: str) -> Iterator[None]:
    """Raise StageError for what fails in a stage, but out of memory as it is, and Ctrl-C."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, MemoryError | KeyboardInterrupt) or type(error).__name__ == "OutOfMemoryError":
            raise
        raise StageError(f"stage '{stage}' failed: {described(error)}") from error


class Stopwatch:
    """Counts the seconds while it runs. One thread starts and stops it, any thread reads it."""

    def __init__(self) -> None:
        # One tuple, so that a reader never sees one half of a change: seconds until the last stop, time of the start.
        self._state: tuple[float, float | None] = (0.0, None)

    def start(self) -> None:
        """Go on counting; nothing changes if it runs."""
        passed, since = self._state
        self._state = (passed, time.perf_counter() if since is None else since)

    def stop(self) -> None:
        """Count no more."""
        self._state = (self.now(), None)

    def now(self) -> float:
        """Seconds counted until now."""
        passed, since = self._state
        return passed if since is None else passed + time.perf_counter() - since


class StageQueue:
    """A queue of at most `depth` items from one thread to another. Nobody who waits keeps a processor busy.

    It counts how long it was empty, and how long it was full, by a stopwatch.
    """

    def __init__(self, depth: int, watch: Stopwatch) -> None:
        self._depth, self._watch = depth, watch
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.reset()

    def put(self, item: Any) -> None:
        """Add an item as soon as there is room. Raises QueueClosed once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            self._pass()
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Any:
        """Take the oldest item as soon as there is one. Raises QueueClosed once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._items))
            self._pass()
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Drop all items, and wake all who wait."""
        with self._changed:
            self._count()
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def reset(self) -> None:
        """Count anew."""
        with self._changed:
            self._empty = self._full = 0.0
            self._begin = self._last = self._watch.now()

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of the counted time in which the queue was empty, and full."""
        with self._changed:
            if not self._closed:
                self._count()
            total = self._last - self._begin
            return (self._empty / total, self._full / total) if total else (0.0, 0.0)

    @property
    def held(self) -> int:
        """How many items lie in it."""
        return len(self._items)

    def _pass(self) -> None:
        """Go on after a wait, unless the queue was closed meanwhile."""
        if self._closed:
            raise QueueClosed
        self._count()

    def _count(self) -> None:
        now = self._watch.now()
        if not self._items:
            self._empty += now - self._last
        elif len(self._items) >= self._depth:
            self._full += now - self._last
        self._last = now


class Loop(threading.Thread):
    """Calls `step` again and again, until a queue that it uses is closed. If it fails, `failed` is told why."""

    def __init__(self, name: str, step: Callable[[], object], failed: Callable[[str, BaseException], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._step, self._failed = step, failed

    def run(self) -> None:
        """The loop. Python calls it in the new thread."""
        try:
            while True:
                self._step()
        except QueueClosed:
            pass
        except BaseException as error:
            self._failed(self.name, error)


@dataclass(frozen=True, slots=True)
class Stage:
    """A step on an item's way.

    work: what it makes of an item; of a number, if it is the first stage. at_once: how many items it works on at a
    time, each in a thread of its own. Their results come out in order.
    """

    name: str
    work: Work
    at_once: int = 1


class Pipeline:
    """Stages that work on items one after the other, each in its own thread. The caller takes what comes out.

    The first stage is given the numbers 0, 1, 2 and so on. `take` gives the next item, `done` says that the caller has
    no more use for it; only the time between the two counts for queues' shares. depth: the most items in a queue.
    on_the_way: the most items between their beginning and `done`; 0: what stages and queues have room for.
    """

    def __init__(self, stages: Sequence[Stage], depth: int = DEPTH, on_the_way: int = 0) -> None:
        """Start all threads."""
        self._watch = Stopwatch()
        self._failure: tuple[str, BaseException] | None = None
        self.queues = {stage.name: StageQueue(depth, self._watch) for stage in stages}
        """The queue after each stage."""
        self._last = self.queues[stages[-1].name]
        self._permits = StageQueue(on_the_way, self._watch) if on_the_way else None
        for _ in range(on_the_way):
            self.done()
        self._begun: list[StageQueue] = []
        self._threads: list[ThreadPoolExecutor] = []
        self._loops = list(self._made(stages))
        for loop in self._loops:
            loop.start()

    @property
    def ready(self) -> int:
        """How many items lie in queues or may be in a stage's hand."""
        return sum(queue.held for queue in [*self.queues.values(), *self._begun]) + len(self._loops)

    def take(self) -> Any:
        """The next item. Raises StageError if a stage has failed, but out of memory as it is."""
        self._watch.start()
        try:
            return self._last.get()
        except QueueClosed:
            if self._failure is None:
                raise
        name, error = self._failure
        with named(name):
            raise error

    def done(self) -> None:
        """Say that the item taken last is used up."""
        self._watch.stop()
        if self._permits is not None:
            with suppress(QueueClosed):  # of a stage that failed, which the next `take` tells
                self._permits.put(None)

    def reset(self) -> None:
        """Count the queues' shares anew."""
        for queue in self.queues.values():
            queue.reset()

    def close(self) -> None:
        """End all stages, and wait until their threads have ended. Each first ends what it has in hand."""
        self._close_queues()
        for loop in self._loops:
            loop.join()
        for threads in self._threads:
            threads.shutdown()

    def _made(self, stages: Sequence[Stage]) -> Iterator[Loop]:
        source = self._numbers()
        for stage in stages:
            queue = self.queues[stage.name]
            if stage.at_once == 1:
                yield Loop(stage.name, _step(source, stage.work, queue), self._fail)
            else:
                yield from self._begin_and_end(stage, source, queue)
            source = queue.get

    def _begin_and_end(self, stage: Stage, source: Callable[[], Any], queue: StageQueue) -> Iterator[Loop]:
        """Two loops of a stage: one begins work on items, the other waits for the oldest item.

        Each has an item in hand, the other items are in a queue between the two.
        """
        threads = ThreadPoolExecutor(stage.at_once, stage.name)
        begun = StageQueue(max(1, stage.at_once - 2), self._watch)
        self._threads.append(threads)
        self._begun.append(begun)
        yield Loop(stage.name, _step(source, lambda item: threads.submit(stage.work, item), begun), self._fail)
        yield Loop(stage.name, _step(begun.get, Future.result, queue), self._fail)

    def _numbers(self) -> Callable[[], int]:
        """A source of numbers that waits for a permit for each of them, if there are permits."""
        numbers = itertools.count()

        def number() -> int:
            if self._permits is not None:
                self._permits.get()
            return next(numbers)

        return number

    def _fail(self, name: str, error: BaseException) -> None:
        if self._failure is None:
            self._failure = (name, error)
        self._close_queues()

    def _close_queues(self) -> None:
        for queue in [*self.queues.values(), *self._begun]:
            queue.close()
        if self._permits is not None:
            self._permits.close()


def _step(source: Callable[[], Any], work: Work, queue: StageQueue) -> Callable[[], None]:
    return lambda: queue.put(work(source()))


def halved(work: Work) -> Work:
    """Every second item gets the result of the item before, so a stage has half of its work to do."""
    turns = itertools.cycle((True, False))
    lock = threading.Lock()
    last: Future[Any] = Future()

    def every_second(item: Any) -> Any:
        nonlocal last
        with lock:
            own = next(turns)
            last = result = Future() if own else last
        if own:
            try:
                result.set_result(work(item))
            except BaseException as error:
                result.set_exception(error)
        return result.result()

    return every_second


class Crew:
    """Threads that share the images of a batch. begin: called once in each thread."""

    def __init__(self, threads: int, begin: Callable[[], object] = lambda: None) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "crew", begin)

    def each(self, count: int, work: Callable[[int], object]) -> None:
        """Call `work` with 0 to count - 1, each once, in all threads; wait for the last. Raises what one raised."""
        numbers = iter(range(count))  # whose next() no other thread can interrupt

        def share() -> None:
            for number in numbers:
                work(number)

        for future in [self._pool.submit(share) for _ in range(min(count, self._threads))]:
            future.result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
