"""A search: which plans come into the next round, what ends it, what it tells; with times that the tests give."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.model import Case, Job, Measurement, Timing
from harness.tune.candidates import Candidate
from harness.tune.search import Ranking, Search, SpentError, Until

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
    """Measures a plan by its number: plan 7 takes 7 seconds, negative ones are wrong. rounds: jobs of each run."""

    def __init__(self, width: float = 0.0, last: int = 10**9) -> None:
        self.width, self.last = width, last
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
    assert [len(jobs) for jobs in machine.rounds] == [27, 10, 5]
    assert plans_of(machine.rounds[2]) == [1, 2, 3, 4, 27]
    assert [jobs[0].timing.max_time for jobs in machine.rounds] == pytest.approx([0.1, 0.3, 0.9])
    assert [jobs[0].timing.precision for jobs in machine.rounds] == pytest.approx([0.018, 0.006, 0.002])
    assert machine.folders == ["round-0", "round-1", "round-2"]
    ranking = found[CASES[0]]
    assert [timed.plan["n"] for timed in ranking.timed] == [1, 2, 3, 4, 27]
    assert [timed.rule for timed in ranking.timed] == [False] * 4 + [True]
    assert (ranking.tried, ranking.complete, ranking.failed) == (27, True, ())


def test_a_plan_that_is_not_surely_faster_does_not_replace_the_rule() -> None:
    assert [t.plan["n"] for t in search(Machine(width=0.3), (1, 1.5), rule=1.5)[CASES[0]].timed] == [1.5, 1]
    assert [t.plan["n"] for t in search(Machine(width=0.1), (1, 1.5), rule=1.5)[CASES[0]].timed] == [1, 1.5]


def test_wrong_plans_are_told_and_never_come_again() -> None:
    machine = Machine()
    ranking = search(machine, (-1, 2, 3, 4, -5, 6), rule=6)[CASES[0]]
    assert [timed.plan["n"] for timed in ranking.timed] == [2, 3, 4, 6]
    assert dict(ranking.failed) == {"n-1": "wrong: y is off", "n-5": "wrong: y is off"}
    assert [plans_of(jobs) for jobs in machine.rounds] == [[-1, 2, 3, 4, -5, 6], [2, 3, 4, 6]]


def test_where_all_are_wrong_nothing_is_timed() -> None:
    ranking = search(Machine(), (-1, -2), rule=-1)[CASES[0]]
    assert ranking.timed == ()
    assert len(ranking.failed) == 2


def test_several_sizes_are_searched_in_the_same_rounds() -> None:
    machine = Machine()
    found = search(machine, range(1, 6), rule=1, cases=CASES)
    assert [len(jobs) for jobs in machine.rounds] == [10, 8]
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


def test_no_candidates_are_no_rounds() -> None:
    machine = Machine()
    assert search(machine, (), rule=0) == {}
    assert machine.rounds == []


def test_a_variant_of_a_case_is_the_candidates() -> None:
    machine = Machine()
    search(machine, (1, 2), rule=1)
    assert machine.rounds[0][0].case == replace(CASES[0], variant="tuned:n1")
