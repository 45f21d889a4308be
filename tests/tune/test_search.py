"""A search: which plans come into the next round, what ends it, what it tells; with times that the tests give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import UsageError
from harness.model import Case, Job, Limits, Measurement, Timing
from harness.tune import search as search_module
from harness.tune.candidates import Candidate
from harness.tune.search import Quick, Ranking, Search, SpentError, Until, _of, schedule
from tests.one_test import one_test

CASES = [Case("op", "tuned", "float32", (("N", size),), device="cpu") for size in (8, 16)]
TIMING = Timing(precision=0.002, max_time=0.9)


class Silent:
    """Hears nothing of it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, share: float | None = None) -> None:
        self.notes.append(text)

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Machine:
    """Measures a plan by its number: plan 7 takes 7 seconds, negative ones are wrong. rounds: jobs of each run.

    again: how long plans take from the second round on, if not as long as in the first.
    """

    def __init__(self, width: float = 0.0, last: int = 10**9, again: Mapping[float, float] | None = None) -> None:
        self.width, self.last, self.again = width, last, again or {}
        self.rounds: list[Sequence[Job]] = []
        self.folders: list[str] = []

    def __call__(self, jobs: Sequence[Job], folder: Path, observer: Any) -> list[Measurement]:
        if len(self.rounds) >= self.last:
            raise SpentError
        self.rounds.append(jobs)
        self.folders.append(folder.name)
        return [self._measured(job.case) for job in jobs]

    def _measured(self, case: Case) -> Measurement:
        number = float(case.variant.partition(":n")[2])
        if len(self.rounds) > 1:
            number = self.again.get(number, number)
        if number < 0:
            return Measurement(case, "wrong", error="y is off")
        spread = number * self.width
        return Measurement(case, "ok", samples=tuple(number + spread * k for k in (-1, -1, 0, 0, 0, 0, 0, 1, 1)))


def search(
    machine: Machine, numbers: Sequence[float], rule: float, cases: Sequence[Case] = CASES[:1]
) -> dict[Case, Ranking]:
    plans = [Candidate({"n": number}, rule=number == rule) for number in numbers]
    made = Search(machine, TIMING, Path("folder"), Until(Silent()), lambda c: f"tuned:{c.text}")
    return made.run(dict.fromkeys(cases, plans))


def plans_of(jobs: Sequence[Job]) -> list[float]:
    return [float(job.case.variant.partition(":n")[2]) for job in jobs]


def test_each_round_has_a_third_of_the_plans_and_three_times_the_time() -> None:
    machine = Machine()
    found = search(machine, range(1, 28), rule=27)
    assert [len(jobs) for jobs in machine.rounds] == [27, 10, 5, 2]
    assert plans_of(machine.rounds[2]) == [1, 2, 3, 4, 27]
    assert [jobs[0].timing.max_time for jobs in machine.rounds] == pytest.approx([0.1, 0.3, 0.9, 0.9])
    assert [jobs[0].timing.precision for jobs in machine.rounds] == pytest.approx([0.018, 0.006, 0.002, 0.002])
    assert machine.folders == ["round-0", "round-1", "round-2", "round-3"]
    ranking = found[CASES[0]]
    assert [timed.plan["n"] for timed in ranking.timed] == [1, 2, 3, 4, 27]
    assert [timed.rule for timed in ranking.timed] == [False] * 4 + [True]
    assert (ranking.tried, ranking.complete, ranking.failed) == (27, True, ())


@pytest.mark.parametrize("step", [1, 5])
def test_the_fastest_plans_are_found_in_whatever_order_they_stand(step: int) -> None:
    """Each fifth of 27 numbers, and so on from the beginning."""
    machine = Machine()
    numbers = [1 + step * (26 - place) % 27 for place in range(27)]
    assert numbers != sorted(numbers)
    ranking = search(machine, numbers, rule=27)[CASES[0]]
    assert [sorted(plans_of(jobs)) for jobs in machine.rounds[1:]] == [
        [*range(1, 10), 27],
        [1, 2, 3, 4, 27],
        [1, 27],
    ]
    assert [timed.plan["n"] for timed in ranking.timed] == [1, 2, 3, 4, 27]


def test_a_plan_is_told_with_the_median_of_its_samples_and_its_interval() -> None:
    case = CASES[0]
    few, many = (1.0, 2.0, 9.0), (1.0, 2.0, 3.0, 4.0, 50.0, 6.0)
    found = [_of(Candidate({"n": 1}), Measurement(case, "ok", samples=samples)) for samples in (few, many)]
    assert [(timed.time, timed.low, timed.high) for timed in found] == [(2.0, 1.0, 9.0), (3.5, 1.0, 50.0)]


def test_intervals_that_touch_do_not_replace_the_rule() -> None:
    """From 1 to 1.25 and from 1.25 on."""
    ranking = search(Machine(width=0.25), (1, 5 / 3), rule=5 / 3)[CASES[0]]
    assert [timed.low for timed in ranking.timed] == [1.25, 0.75]
    assert [timed.rule for timed in ranking.timed] == [True, False]


def test_a_plan_that_is_not_surely_faster_does_not_replace_the_rule() -> None:
    assert [t.plan["n"] for t in search(Machine(width=0.3), (1, 1.5), rule=1.5)[CASES[0]].timed] == [1.5, 1]
    assert [t.plan["n"] for t in search(Machine(width=0.1), (1, 1.5), rule=1.5)[CASES[0]].timed] == [1, 1.5]


def test_wrong_plans_are_told_and_never_come_again() -> None:
    machine = Machine()
    ranking = search(machine, (-1, 2, 3, 4, -5, 6), rule=6)[CASES[0]]
    assert [timed.plan["n"] for timed in ranking.timed] == [2, 3, 4, 6]
    assert dict(ranking.failed) == {"n-1": "wrong: y is off", "n-5": "wrong: y is off"}
    assert [plans_of(jobs) for jobs in machine.rounds] == [[-1, 2, 3, 4, -5, 6], [2, 3, 4, 6], [2, 6]]


def test_the_fastest_must_be_faster_than_the_rule_once_more() -> None:
    """The last round chose it, so by its times it seems faster than it is."""
    lucky = Machine(again={1.0: 2.0})
    ranking = search(lucky, (1, 1.5), rule=1.5)[CASES[0]]
    assert plans_of(lucky.rounds[-1]) == [1, 1.5]
    assert [(timed.plan["n"], timed.time) for timed in ranking.timed] == [(1.5, 1.5), (1, 2.0)]
    true = search(Machine(again={1.0: 1.1}), (1, 1.5), rule=1.5)[CASES[0]]
    assert [(timed.plan["n"], timed.time) for timed in true.timed] == [(1, 1.1), (1.5, 1.5)]


def test_a_plan_that_is_wrong_when_it_is_measured_once_more_is_not_in_the_table() -> None:
    ranking = search(Machine(again={1.0: -1.0}), (1, 1.2, 1.5), rule=1.5)[CASES[0]]
    assert dict(ranking.failed) == {"n1": "wrong: y is off"}
    # The second fastest has no time by which it wasn't chosen.
    assert [timed.plan["n"] for timed in ranking.timed] == [1.5, 1.2]


def test_where_the_rule_is_the_fastest_nothing_is_measured_once_more() -> None:
    machine = Machine()
    search(machine, (1, 2), rule=1)
    assert len(machine.rounds) == 1


def test_where_the_rule_is_wrong_the_fastest_of_the_others_is_taken() -> None:
    assert [t.plan["n"] for t in search(Machine(), (-1, 2, 3), rule=-1)[CASES[0]].timed] == [2, 3]


def test_a_rule_that_fails_once_is_measured_again_so_no_other_plan_wins_without_a_comparison() -> None:
    machine = Machine(again={-1.0: 1.5})
    ranking = search(machine, (-1, 2, -3), rule=-1)[CASES[0]]
    assert [(t.plan["n"], t.time, t.rule) for t in ranking.timed] == [(-1, 1.5, True), (2, 2, False)]
    assert dict(ranking.failed) == {"n-3": "wrong: y is off"}
    assert [*zip(machine.folders, map(plans_of, machine.rounds), strict=True)] == [
        ("round-0", [-1, 2, -3]),
        ("round-0-again", [-1]),
    ]


def test_a_case_with_few_plans_begins_when_the_others_have_as_few_left() -> None:
    machine = Machine()
    many, few = ([Candidate({"n": number}, rule=number == 1) for number in range(1, last)] for last in (28, 4))
    made = Search(machine, TIMING, Path("folder"), Until(Silent()), lambda c: f"tuned:{c.text}")
    found = made.run(dict(zip(CASES, (many, few), strict=True)))
    assert [sum(job.case.symbols["N"] == 16 for job in jobs) for jobs in machine.rounds] == [0, 0, 3]
    assert [len(ranking.timed) for ranking in found.values()] == [4, 3]


@one_test(
    ("counts", "rounds"),
    [
        ([], []),
        ([1], [(1, 0.9)]),
        ([2], [(2, 0.9), (2, 0.9)]),
        ([4], [(4, 0.9), (2, 0.9)]),
        ([27], [(27, 0.1), (10, 0.3), (5, 0.9), (2, 0.9)]),
        ([27, 0, 3], [(27, 0.1), (10, 0.3), (8, 0.9), (4, 0.9)]),
    ],
)
def test_what_a_search_will_measure_is_known_before(counts: list[int], rounds: list[tuple[int, float]]) -> None:
    told = schedule(counts, TIMING)
    assert [plans for plans, _ in told] == [plans for plans, _ in rounds]
    assert [seconds for _, seconds in told] == pytest.approx([seconds for _, seconds in rounds])
    # A rule that is never among the fastest makes a search as long as that.
    machine = Machine()
    plans = {
        case: [Candidate({"n": number}, rule=number == count) for number in range(1, count + 1)]
        for case, count in zip((*CASES, replace(CASES[0], dtype="float16")), counts, strict=False)
    }
    Search(machine, TIMING, Path("folder"), Until(Silent()), lambda c: f"tuned:{c.text}").run(plans)
    assert [len(jobs) for jobs in machine.rounds] == [plans for plans, _ in rounds]


def test_where_all_are_wrong_nothing_is_timed() -> None:
    ranking = search(Machine(), (-1, -2), rule=-1)[CASES[0]]
    assert ranking.timed == ()
    assert len(ranking.failed) == 2


def test_several_sizes_are_searched_in_the_same_rounds() -> None:
    machine = Machine()
    found = search(machine, range(1, 6), rule=1, cases=CASES)
    assert [len(jobs) for jobs in machine.rounds] == [10, 8]  # and nothing once more: the rule is the fastest
    assert {case: ranking.timed[0].plan["n"] for case, ranking in found.items()} == dict.fromkeys(CASES, 1)


def test_when_the_time_is_over_what_was_measured_stays() -> None:
    ranking = search(Machine(last=1), range(1, 6), rule=1)[CASES[0]]
    assert not ranking.complete
    assert [timed.plan["n"] for timed in ranking.timed] == [1, 2, 3, 4]


def test_the_time_is_looked_at_before_each_case() -> None:
    observer = Silent()
    Until(observer, math.inf).started(Job(CASES[0]), 0)
    with pytest.raises(SpentError):
        Until(observer, 0.0).started(Job(CASES[0]), 0)


def test_what_a_run_says_is_passed_on_but_for_notes_of_the_machine() -> None:
    observer = Silent()
    until = Until(observer)
    until.note("the machine's limits")
    assert until.notes is observer.notes
    assert observer.notes == []


def test_a_round_goes_on_with_its_folder_unless_other_code_made_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[tuple[bool, bool]] = []
    refuses = False

    def run(_plan: object, *, folder: Path, resume: bool, **_: object) -> Any:
        told.append((resume, folder.exists()))
        if refuses and resume:
            raise UsageError("made by other code", "begin anew")
        return SimpleNamespace(measurements=["measured"])

    monkeypatch.setattr("harness.tune.search.runner.run", run)
    op: Any = SimpleNamespace(name="op")
    measure: Any = search_module.in_runs(op, "cpu", [], Quick(None, "cpu"))
    folder, observer = tmp_path / "round-0", Until(Silent())
    assert measure([], folder, observer) == ["measured"]
    folder.mkdir()
    assert measure([], folder, observer) == ["measured"]
    refuses = True
    assert measure([], folder, observer) == ["measured"]
    assert told == [(False, False), (True, True), (True, True), (False, False)]


def test_a_search_takes_limits_that_are_kept_and_measures_none(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Quick(None, "cpu")
    kept = Limits(cache_bytes=7)
    for found, wanted in ((kept, kept), (None, Limits())):
        monkeypatch.setattr("harness.tune.search.limits.recall", lambda _, found=found: found)
        assert workers.limits(None, None) == wanted
    assert workers.limits_again(kept, None) is kept


class Processes:
    """What workers are asked to do with their processes."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def measure(self, job: Job, process: int, *, timed: bool) -> Measurement:
        self.told.append("measure")
        return Measurement(job.case, "ok")

    def restart(self) -> None:
        self.told.append("restart")

    def begin_next(self, *, compiler: bool) -> None:
        self.told.append("begin_next")


def test_the_process_that_is_begun_while_a_round_ends_is_the_next_rounds() -> None:
    """A run restarts the processes where it begins, and where it has ended."""
    processes: Any = Processes()
    workers = Quick(processes, "cpu")
    for _ in range(2):
        with workers as own:
            own.restart()
            own.measure(Job(CASES[0]))
            own.begin_next()
            own.measure(Job(CASES[1]))
            own.restart()
    assert processes.told == ["measure", "begin_next", "measure", "restart"] * 2


def test_no_candidates_are_no_rounds() -> None:
    machine = Machine()
    assert search(machine, (), rule=0) == {}
    assert machine.rounds == []


def test_a_variant_of_a_case_is_the_candidates() -> None:
    machine = Machine()
    search(machine, (1, 2), rule=1)
    assert machine.rounds[0][0].case == replace(CASES[0], variant="tuned:n1")
