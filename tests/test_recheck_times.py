"""What the check of timed calls concludes from times, and how long it looks, by a clock that the tests move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness import recheck
from harness.devices import Batch
from harness.ranks import Group
from tests.one_test import one_test
from tests.recheck_setting import US, Setting


@pytest.fixture(autouse=True)
def setting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Setting]:
    def made(call: Callable[[bool, int], float] = lambda *_: 10 * US, **said: Any) -> Setting:
        found = Setting(call, **said)
        monkeypatch.setattr(recheck, "time", found.now)
        return found

    return made


@pytest.mark.parametrize(("rounds", "limit"), [(3, 1.5), (4, 1.3), (5, 1.2), (6, 1.1), (7, 1.1)])
def test_the_fewer_rounds_the_more_calls_on_new_inputs_must_take(setting, rounds, limit):
    are_slower = setting().recheck._are_slower
    assert are_slower([1.01 * limit] * rounds, [1.0] * rounds)
    assert not are_slower([0.99 * limit] * rounds, [1.0] * rounds)
    assert not are_slower([limit] * rounds, [1.0] * rounds), "the limit itself is within it"
    assert not are_slower([2.0] * (rounds - 1) + [1.0], [1.0] * rounds), "one round is as fast"


@pytest.mark.parametrize("rounds", [3, 4, 7])
def test_on_a_host_caches_make_half_a_difference(setting, rounds):
    found = setting()
    found.device.on_host = True
    assert found.recheck._are_slower([1.51] * rounds, [1.0] * rounds)
    assert not found.recheck._are_slower([1.49] * rounds, [1.0] * rounds)


def test_where_time_is_plenty_seven_rounds_count_and_the_first_one_does_not(setting):
    found = setting(lambda is_new, number: 1000 * US if is_new and not number else 10 * US)
    assert found.recheck.novelty(10.0) is None
    assert found.rounds == 8


def test_ranks_begin_together_so_that_none_waits_for_inputs_of_another_one(setting):
    """A collective of two ranks waits for the other rank, which draws new inputs for 5 ms longer."""
    found = setting(lambda *_: max(ready[0] - found.now.seconds, 0.0) + 10 * US)
    ready, draw = [0.0], found.rotation.renew

    def renew(places: Sequence[int], *, anew: bool = True) -> None:
        draw(places, anew=anew)
        ready[0] = found.now.seconds + anew * 5e-3

    def gather(value: Any, _: float) -> list[Any]:
        found.now.seconds = max(found.now.seconds, ready[0])
        return [value, value]

    found.rotation.renew, found.recheck._ctx.group = renew, Group(0, 2, gather)
    assert found.recheck.novelty(10.0) is None
    assert found.rounds == 8


@pytest.mark.parametrize(("first", "is_told"), [((1, 0), False), ((1,), True), ((0,), False)])
def test_either_kind_comes_first_since_other_work_may_hold_up_the_first_ones(setting, monkeypatch, first, is_told):
    """Other work takes turns with the calls: the first ones of each round take seven times as long."""
    turns, held_up = itertools.cycle(first), itertools.cycle([70, 10])
    monkeypatch.setattr(recheck, "secrets", SimpleNamespace(randbelow=lambda _: next(turns)))
    assert bool(setting(lambda *_: next(held_up) * US).recheck.novelty(10.0)) is is_told


def test_where_time_is_over_three_rounds_count(setting):
    """There seems to be time for four rounds, and the calls take longer than they took in the graph."""
    found = setting(lambda *_: 100 * US, sets=1, renewal=1.0)
    assert found.recheck.novelty(8.0001) is None
    assert found.rounds == 4


def test_where_four_rounds_take_too_long_nothing_is_told(setting):
    found = setting(lambda *_: 10 * US, renewal=1.0)
    assert found.recheck.novelty(7.9) is None
    assert found.device.batches == []


@pytest.mark.parametrize(("renewal", "rounds"), [(0.12, 4), (0.13, 0)])
def test_a_second_is_always_taken_for_new_inputs(setting, renewal, rounds):
    """Large inputs of quick calls take long to draw: nothing else tells a result that is kept for their values."""
    found = setting(lambda *_: 10 * US, sets=1, renewal=renewal)
    assert found.recheck.novelty(0.01) is None
    assert found.rounds == rounds


@pytest.mark.parametrize(("seconds", "batches"), [(7.99, []), (8.0, [1])])
def test_the_time_of_a_call_counts_in_the_time_of_a_round(setting, seconds, batches):
    """A call of the graph takes a second: four rounds of two calls take eight. The first renewal is awaited."""
    found = setting(each=1.0)
    found.recheck.novelty(seconds)
    assert found.device.batches == batches
    assert (found.rotation.done[0], found.device.waited) == (("renew", [0]), 1)


def test_so_many_calls_are_made_anew_as_seven_rounds_have_time_for(setting):
    """A call and its renewal take a second: three of them in 14 rounds take 42."""
    found = setting(lambda *_: 10 * US, sets=5, renewal=1.0)
    found.recheck.novelty(43.0)
    assert found.device.batches == [3]


def test_a_suspicion_is_looked_into_for_ten_seconds_beyond_its_time(setting):
    """Renewals take half a second here, so a round takes one: five are over after time, and ten come then."""
    found = setting(lambda is_new, _: (20 if is_new else 10) * US, sets=1, renewal=0.5)
    assert "times as long on inputs" in found.recheck.novelty(4.01)
    assert found.rounds == 8, "no more than all rounds"
    slow = setting(lambda is_new, _: (20 if is_new else 10) * US, sets=1, renewal=1.3)
    assert "times as long on inputs" in slow.recheck.novelty(10.41)
    assert slow.rounds == 8, "the last one begins 18.2 seconds after the first, the limit is 20.4"
    slower = setting(lambda is_new, _: (20 if is_new else 10) * US, sets=1, renewal=2.0)
    assert "times as long on inputs" in slower.recheck.novelty(16.01)
    assert slower.rounds == 7, "the seventh begins after 24 seconds, the eighth would after 28"


def test_what_is_told_are_medians_of_calls(setting):
    found = setting(lambda is_new, number: [500, 30, 40, 45, 50, 60, 70, 80][number] * US if is_new else 20 * US)
    assert found.recheck.novelty(10.0) == (
        "calls take 2.5 times as long on inputs that they have not seen as on inputs that they have "
        "(50 us beside 20 us): an earlier call's work is used again"
    )


def test_calls_that_go_on_from_the_last_one_or_keep_their_inputs_are_not_compared(setting):
    for found in (setting(inplace=True), setting()):
        found.rotation.is_renewable = found.recheck._is_updating
        assert found.recheck.novelty(10.0) is None
        assert found.rotation.done == found.device.batches == []


def test_a_graph_that_saves_work_is_found_when_it_is_measured_again(setting):
    """Calls that take 30 us alone: 4 of them 120 us. The graph of 8 calls takes 10 us each."""
    found = setting(lambda *_: 30 * US, passes=2, graph=[80 * US] * 7)
    assert found.recheck.novelty(10.0) == (
        "calls take 3 times as long where each is made once as in the graph that was timed "
        "(30 us beside 10 us): its calls share their work"
    )


def test_the_best_of_all_rounds_is_compared(setting):
    """Noise makes all but one round slow, of single calls and of the graph."""
    alone = setting(lambda _, number: (30 if number != 4 else 10) * US, passes=2, graph=[80 * US] * 7)
    assert alone.recheck.novelty(10.0) is None, "a single call was quick once before"
    again = setting(lambda _, number: (30 if number != 13 else 10) * US, passes=2, graph=[80 * US] * 7)
    assert again.recheck.novelty(10.0) is None, "a single call is quick once when it is measured again"
    for quick in ((True, 1), (False, 1)):
        second = setting(lambda *call, quick=quick: (10 if call == quick else 30) * US, passes=2, graph=[80 * US] * 7)
        assert second.recheck.novelty(10.0) is None, "the first round that counts is the second one"
    first = setting(lambda _, number: (30 if number else 10) * US, passes=2, graph=[80 * US] * 7)
    assert "share their work" in first.recheck.novelty(10.0), "the first round doesn't count"
    graph = setting(lambda *_: 30 * US, passes=2, graph=[*[240 * US] * 6, 80 * US])
    assert "share their work" in graph.recheck.novelty(10.0)


def test_a_graph_that_was_quick_once_is_measured_again_and_then_believed(setting):
    found = setting(lambda *_: 30 * US, passes=2, graph=[240 * US] * 7)
    assert found.recheck.novelty(10.0) is None
    assert next(found.graph, None) is None, "all seven rounds are made"


@one_test(
    ("once", "each", "calls", "found"),
    [
        (151, 10, 10, True),
        (149, 10, 10, False),
        (151, 25, 4, True),
        (149, 25, 4, False),
        (52, 1, 1, True),
        (1490, 100, 10, False),
        (138, 9, 10, False),
        (50, 1, 1, False),
    ],
)
def test_what_is_saved_must_be_a_half_and_fifty_microseconds(once, each, calls, found):
    assert recheck._is_saving(once * US, each * US, calls) is found


def test_what_is_saved_may_be_the_limit_itself():
    assert recheck._is_saving(1.5, 1.0, 1)
    assert recheck._is_saving(50e-6, 0.0, 1)


def test_no_work_is_shared_where_each_call_is_in_the_graph_once_or_there_is_none(setting):
    for said in ({"passes": 1}, {"passes": 2, "replay": False}):
        assert setting(lambda *_: 90 * US, **said).recheck.novelty(10.0) is None


@pytest.mark.parametrize("said", [{"sets": 1}, {"each": 20e-3}, {"inplace": True}, {"group": SimpleNamespace(size=2)}])
def test_the_first_call_is_not_made_alone_where_that_says_nothing_or_takes_long(setting, said):
    found = setting(**said)
    assert found.recheck.alone() is None
    assert found.rotation.done == []


def test_the_first_call_is_made_alone_up_to_twenty_milliseconds(setting, monkeypatch):
    found = setting(each=19.9e-3, sets=12)
    monkeypatch.setattr(found.recheck, "_result", lambda *what: f"looked at {what} after {found.device.waited} waits")
    assert found.recheck.alone() == "looked at (0, None, 1) after 1 waits"
    others = [1, 2, 3, 4, 5, 6, 7]
    assert found.rotation.done == [("chosen", 8), ("renew", [0]), ("poison", others), ("poison", [0])]
    assert found.device.batches == [1]
    found.rotation.written = (7,)
    assert "wrote into the outputs of other calls" in found.recheck.alone()


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 1), (0.029, 2), (0.031, 3), (1.0, 8)])
def test_calls_without_a_graph_are_made_again_for_as_many_sets_as_there_is_time_for(setting, seconds, most):
    """A call takes 10 ms."""
    found = setting(each=10e-3, sets=12, replay=False)
    assert found.recheck._most(seconds) == most
    assert setting(each=10e-3, sets=12).recheck._most(seconds) == 8, "a graph makes all calls again"


@pytest.mark.parametrize(("seconds", "compared"), [(0.0, 1), (2.0, 2), (2.5, 3), (100.0, 4)])
def test_one_set_is_compared_and_more_while_there_is_time(setting, monkeypatch, seconds, compared):
    found = setting(graph=[0.0])
    seen: list[int] = []

    def result(place: int, form: object, passes: int) -> None:
        assert (form, passes) == (f"form of {place}", 1)
        seen.append(place)
        found.now.seconds += 1.0

    monkeypatch.setattr(found.recheck, "_watch", lambda call: f"form of {call.tensors}")
    monkeypatch.setattr(found.recheck, "_result", result)
    monkeypatch.setattr(found.rotation, "copies", lambda _: [], raising=False)
    assert found.recheck.results(seconds) is None
    assert seen == [0, 1, 2, 3][:compared]
    assert found.rotation.done == [("chosen", 8), ("renew", [0, 1, 2, 3])]


def test_what_is_wrong_with_any_set_is_told(setting, monkeypatch):
    found = setting(graph=[0.0])
    monkeypatch.setattr(found.recheck, "_watch", lambda _: None)
    monkeypatch.setattr(found.recheck, "_result", lambda place, *_: "wrong" if place == 3 else None)
    monkeypatch.setattr(found.rotation, "copies", lambda _: [], raising=False)
    assert found.recheck.results(100.0) == "wrong"


def test_an_op_without_tensors_is_checked_in_its_own_way(setting):
    """What it is given: the context, the tensors of the first call, and a call as it was timed, until its end."""
    found = setting(graph=[1.0])
    recheck, given = found.recheck, []
    recheck._op.inputs = ()
    assert recheck.results(1.0) is None, "the op has no check of its own"

    def own(ctx: object, tensors: object, call: Callable[[], object]) -> Iterator[str]:
        given.extend([ctx, tensors])
        before = found.now.seconds
        call()
        assert (found.now.seconds - before, found.device.waited) == (1.0, 1)
        yield "wrong in its own way"

    recheck._op.recheck = own
    assert recheck.results(1.0) == "wrong in its own way"
    assert given == [recheck._ctx, 0]


def test_without_a_graph_the_first_call_is_made(setting):
    found = setting(replay=False)
    made: list[int] = []
    found.rotation.calls = [lambda place=place: made.append(place) for place in range(3)]
    found.recheck._again_once()
    assert made == [0]


@pytest.mark.parametrize(
    ("timer", "replay", "runs"),
    [
        ("launch", True, True),
        ("launch", False, True),
        ("host", False, True),
        ("host", True, False),
        ("graph", True, False),
    ],
)
def test_calls_that_were_timed_one_by_one_are_timed_so_again(setting, timer, replay, runs):
    """Samples of single calls are added up; a graph is timed from its begin to its end."""
    found = setting()

    def once() -> None:
        found.now.seconds += 2.0

    batch = Batch(lambda count: [0.5] * count, 4, timer, 2.0, replay=once if replay else None)
    assert found.recheck._timed(batch, [once, once, once]) == (1.5 if runs else 2.0)


def test_calls_of_a_steady_timer_are_timed_together(setting):
    found = setting()

    def once() -> None:
        found.now.seconds += 2.0

    assert found.recheck._timed(Batch(lambda _: [], 4, "steady", 2.0), [once, once, once]) == 6.0
