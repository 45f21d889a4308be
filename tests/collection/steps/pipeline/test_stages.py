"""Stages with threads: how fast they are together, what closes them, and what a failure of one does."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

from harness.collection.steps.pipeline import _stages
from harness.collection.steps.pipeline._expected import expected, gain, slowest
from harness.collection.steps.pipeline._facts import rate_alone
from harness.collection.steps.pipeline._stages import (
    Crew,
    Pipeline,
    QueueClosed,
    Stage,
    StageError,
    StageQueue,
    Stopwatch,
    halved,
)
from tests.one_test import one_test

LIMIT = 30
"""Seconds after which a wait is an error."""
SECONDS = {"read": 4e-3, "prepare": 9e-3, "train": 6e-3}
COUNT = 20


def sleeping(clock):
    def of(name):
        return lambda item: clock.sleep(SECONDS[name]) or item

    return {name: of(name) for name in SECONDS}


def started(overlapping, works):
    stages = [Stage(name, work) for name, work in works.items() if name != "train"]
    return Pipeline(stages) if overlapping else Pipeline(stages, 1, on_the_way=1)


def rate(clock, overlapping, works):
    """Items a second of the whole, whose last stage is the caller."""
    pipeline = started(overlapping, works)
    for count in range(COUNT + 6):
        if count == 6:
            start = clock.now
        works["train"](pipeline.take())
        pipeline.done()
    found = COUNT / (clock.now - start)
    clock.stop()
    pipeline.close()
    return found


@pytest.mark.parametrize("overlapping", [False, True])
def test_the_whole_is_as_fast_as_its_stages_say_and_gains_what_they_say(start_clock, overlapping):
    rates = {
        name: rate_alone(work, itertools.count(), 0.03, lambda: None) for name, work in sleeping(start_clock(1)).items()
    }
    found = rate(clock := start_clock(3), overlapping, sleeping(clock))
    assert found == pytest.approx(expected(rates, overlapping=overlapping))
    works = sleeping(clock := start_clock(3))
    faster = rate(clock, overlapping, works | {"prepare": halved(works["prepare"])})
    assert slowest(rates) == "prepare"
    assert faster / found == pytest.approx(gain(rates, "prepare", overlapping=overlapping))


def test_rates_that_are_expected():
    rates = {"read": 1000.0, "prepare": 250.0, "copy": 500.0, "train": 200.0}
    assert expected(rates, overlapping=True) == 200
    assert expected(rates, overlapping=False) == pytest.approx(1 / (0.001 + 0.004 + 0.002 + 0.005))
    assert slowest(rates) == "train"
    assert gain(rates, "train", overlapping=True) == 250 / 200
    assert gain(rates, "copy", overlapping=True) == 1
    assert gain(rates, "train", overlapping=False) == pytest.approx(12 / 9.5)


def test_items_keep_their_order_and_go_through_every_stage():
    pipeline = Pipeline([Stage("double", lambda n: 2 * n), Stage("next", lambda n: n + 1)])
    found = []
    for _ in range(10):
        found.append(pipeline.take())
        pipeline.done()
    pipeline.close()
    assert found == [2 * n + 1 for n in range(10)]


def test_with_one_on_the_way_the_next_begins_only_when_the_last_is_done(start_clock):
    begun, clock = [], start_clock(3)
    pipeline = Pipeline([Stage("first", lambda n: begun.append(n) or n), Stage("second", lambda n: n)], 1, on_the_way=1)
    assert pipeline.take() == 0
    clock.settle()
    assert begun == [0]
    pipeline.done()
    assert pipeline.take() == 1
    clock.settle()
    assert begun == [0, 1]
    pipeline.close()


def test_queues_are_bounded(start_clock):
    begun, clock = [], start_clock(2)
    pipeline = Pipeline([Stage("first", lambda n: begun.append(n) or n)], 2)
    clock.settle()
    assert begun == [0, 1, 2]  # two in the queue, one in hand
    assert pipeline.ready == 3
    pipeline.close()


@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_a_stage_may_work_on_several_items_at_once_and_keeps_their_order(at_once):
    rounds = 4
    together = threading.Barrier(at_once, timeout=LIMIT)
    others_ended = [threading.Semaphore(0) for _ in range(rounds)]

    def work(item):
        """The first item of a round ends last."""
        turn, place = divmod(item, at_once)
        if turn < rounds:
            together.wait()
            if place:
                others_ended[turn].release()
            else:
                assert all(others_ended[turn].acquire(timeout=LIMIT) for _ in range(at_once - 1))
        return item

    pipeline = Pipeline([Stage("read", lambda n: n), Stage("prepare", work, at_once)])
    assert [pipeline.take() for _ in range(rounds * at_once)] == list(range(rounds * at_once))
    pipeline.close()


def test_with_one_on_the_way_a_stage_for_several_gives_its_only_item():
    pipeline = Pipeline([Stage("read", lambda n: n), Stage("prepare", lambda n: n, 3)], 1, on_the_way=1)
    for number in range(5):
        assert pipeline.take() == number
        pipeline.done()
    pipeline.close()


def test_a_stage_for_several_begins_no_more_than_that(start_clock):
    begun, all_begun, go_on, clock = [], threading.Semaphore(0), threading.Event(), start_clock(3)

    def work(item):
        begun.append(item)
        all_begun.release()
        assert go_on.wait(LIMIT)
        return item

    pipeline = Pipeline([Stage("prepare", work, 3)], 1)
    assert all(all_begun.acquire(timeout=LIMIT) for _ in range(3))
    clock.settle(at_work=1)  # the loop that waits for the first item; the other one has the third item in hand
    assert sorted(begun) == [0, 1, 2]
    go_on.set()
    pipeline.close()


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_the_rate_alone_of_work_on_several_items_at_once(start_clock, at_once):
    clock, seconds, end = start_clock(1), 0.01, 0.5

    def pass_time():
        clock.now += seconds  # for all who work

    together = threading.Barrier(at_once, pass_time, LIMIT)

    def work(_number):
        if clock.now < end:
            together.wait()

    found = rate_alone(work, itertools.count(), end - seconds - 1e-9, lambda: None, at_once)
    # One item of 49 rounds may be counted or not.
    assert found == pytest.approx(at_once / seconds, rel=1 / 49)


def test_the_rate_alone_tells_what_failed():
    with pytest.raises(ValueError, match="no such file"):
        rate_alone(fails, itertools.count(), 0.0, lambda: None, 3)


def fails(_item):
    raise ValueError("no such file")


@one_test("at_once", [1, 3])
@one_test("on_the_way", [0, 1])
@one_test("place", [0, 1])
def test_a_stage_that_fails_ends_the_pipeline_by_its_name(on_the_way, place, at_once):
    before = threading.active_count()
    works = [lambda n: n, lambda n: n]
    works[place] = fails
    pipeline = Pipeline([Stage(f"stage{i}", work, at_once) for i, work in enumerate(works)], 1, on_the_way)
    with pytest.raises(StageError, match=f"stage 'stage{place}' failed: ValueError: no such file"):
        pipeline.take()
    pipeline.done()  # a caller that ends its step
    pipeline.close()
    assert threading.active_count() == before


def test_out_of_memory_stays_what_it_is():
    def too_large(_item):
        raise torch.OutOfMemoryError("CUDA out of memory")

    pipeline = Pipeline([Stage("copy", too_large)])
    with pytest.raises(torch.OutOfMemoryError):
        pipeline.take()
    pipeline.close()


@pytest.mark.parametrize("overlapping", [False, True])
def test_closing_ends_all_threads_wherever_they_wait(overlapping):
    before = threading.active_count()
    pipeline = started(overlapping, dict.fromkeys(SECONDS, lambda item: item))
    pipeline.take()
    pipeline.close()
    pipeline.close()
    assert threading.active_count() == before
    with pytest.raises(QueueClosed):
        pipeline.take()


def test_a_queue_counts_how_long_it_was_empty_and_full(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_stages, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    watch = Stopwatch()
    queue = StageQueue(2, watch)
    watch.start()
    for seconds, act in ((1, lambda: queue.put(1)), (2, lambda: queue.put(2)), (4, queue.get), (3, watch.stop)):
        now[0] += seconds
        act()
    now[0] += 100  # when nobody takes anything, nothing is counted
    assert queue.shares == (1 / 10, 4 / 10)
    queue.reset()
    watch.start()
    now[0] += 5
    queue.get()
    now[0] += 15
    assert queue.shares == (15 / 20, 0)


def test_a_closed_queue_counts_until_it_was_closed_and_holds_nothing(monkeypatch):
    now = [7.0]
    monkeypatch.setattr(_stages, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    watch = Stopwatch()
    assert watch.now() == 0
    queue = StageQueue(1, watch)
    assert queue.shares == (0, 0)  # no time has passed
    watch.start()
    now[0] += 1
    queue.put("item")
    now[0] += 3
    queue.close()
    now[0] += 100
    assert queue.held == 0
    assert queue.shares == (1 / 4, 3 / 4)
    for use in (queue.get, lambda: queue.put(1)):
        with pytest.raises(QueueClosed):
            use()


def test_shares_are_of_the_time_between_taking_and_being_done(start_clock):
    clock = start_clock(2)
    pipeline = Pipeline([Stage("read", lambda n: n)], 1)
    queue = pipeline.queues["read"]
    clock.now += 5  # of which nothing counts
    pipeline.take()
    clock.settle()
    pipeline.reset()
    clock.now += 3
    assert queue.shares == (0, 1)
    pipeline.done()
    clock.now += 100
    assert queue.shares == (0, 1)
    assert queue._last - queue._begin == 3
    pipeline.reset()
    assert queue.shares == (0, 0)
    pipeline.close()


def test_no_stage_keeps_a_process_from_ending():
    pipeline = Pipeline([Stage("read", lambda n: n), Stage("prepare", lambda n: n, 2)])
    assert [(loop.name, loop.daemon) for loop in pipeline._loops] == [("read", True), *[("prepare", True)] * 2]
    pipeline.close()


def test_halved_work_gives_every_result_twice():
    done = []
    work = halved(lambda n: done.append(n) or n)
    assert [work(n) for n in range(5)] == [0, 0, 2, 2, 4]
    assert done == [0, 2, 4]


def test_halved_work_of_several_threads_gives_every_result_twice():
    done = []

    def work(number):
        done.append(number)
        return number

    pipeline = Pipeline([Stage("prepare", halved(work), 3)])
    found = [pipeline.take() for _ in range(20)]
    pipeline.close()
    # Threads may begin in another order than their items, so the last item may come after its like.
    assert {found.count(one) for one in set(found)} <= {1, 2}
    assert 10 <= len(set(found)) <= 11
    assert set(found) <= set(done)


def test_halved_work_that_fails_tells_both():
    work = halved(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such file"):
            work(0)


def test_a_crew_shares_a_batch_and_tells_what_one_raised():
    begun = []
    crew = Crew(3, lambda: begun.append(threading.current_thread().name))
    found = []
    crew.each(100, found.append)
    assert sorted(found) == list(range(100))
    with pytest.raises(ValueError, match="no such file"):
        crew.each(4, fails)
    crew.close()
    assert 1 <= len(set(begun)) <= 3
