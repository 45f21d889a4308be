"""Successive halving: rounds of runs, each with fewer candidates and more time for each, and a round that confirms."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from harness import limits, runner, stats
from harness.devices import kinds
from harness.errors import UsageError
from harness.limits import Needs
from harness.model import Case, Job, Limits, Measurement, Timing
from harness.ops import Op
from harness.plans import TimedPlan
from harness.processes.supervisor import Workers
from harness.runner import Observer
from harness.scenario import Plan
from harness.tune.candidates import Candidate
from harness.units import plural

_FACTOR = 3  # fewer candidates in each round, and more time for each
_LAST = 4  # candidates of the last round, which has all the time that a case of a run has
_COARSEST = 0.02  # the widest interval of a median by which a candidate leaves


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search found at a case: the plans of the last round, the one to take first; and who was wrong.

    tried: how many plans were timed. complete: whether the last round was reached. failed: the text of a plan, and how
    it ended.
    """

    timed: tuple[TimedPlan, ...]
    tried: int
    complete: bool
    failed: tuple[tuple[str, str], ...] = ()


class SpentError(Exception):
    """The time that a search may take is over."""


@dataclass(slots=True)
class Until:
    """Passes on what a run says, and ends the run between two cases when the time is over. deadline: monotonic."""

    observer: Observer
    deadline: float = math.inf

    def started(self, job: Job, process: int) -> None:
        """Raise SpentError if no time is left."""
        if time.monotonic() >= self.deadline:
            raise SpentError
        self.observer.started(job, process)

    def note(self, text: str, share: float | None = None) -> None:
        """Say nothing: what a run says of the machine isn't so here, where the machine isn't measured."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.observer, name)


class Quick:
    """Processes for all rounds of a search, as `runner.Measurers`. What a search doesn't need takes no time.

    The machine isn't measured for each round: a kept limit is believed, or there is none. The process that loads torch
    while a round ends is the next round's.
    """

    def __init__(self, workers: Workers, device: str) -> None:
        self._workers, self._device = workers, device
        self._fresh = True

    def measure(self, job: Job, process: int = 0, *, timed: bool = True) -> Measurement:
        """The job's measurement."""
        self._fresh = False
        return self._workers.measure(job, process, timed=timed)

    def restart(self) -> None:
        """Let the next question go to a new process, unless it does already, since nothing was asked."""
        if not self._fresh:
            self._workers.restart()
            self._fresh = True

    def begin_next(self, *, compiler: bool = False) -> None:
        """Start the next process while the current one measures."""
        self._workers.begin_next(compiler=compiler)

    def limits(self, needs: Needs, note: Any, fresh: bool = False) -> Limits:  # noqa: ARG002 - as workers have it
        """The limits that are kept, or none."""
        return limits.recall(kinds()[self._device].machine()) or Limits()

    def limits_again(self, start: Limits, note: Any) -> Limits:  # noqa: ARG002 - as workers have it
        """The limits of the start."""
        return start

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the processes to the next round: who made them ends them."""


Measure = Callable[[Sequence[Job], Path, Observer], Sequence[Measurement]]
"""Measures jobs into a folder, what the folder has already left out."""


def in_runs(op: Op, device: str, plugins: Sequence[Path], workers: Quick) -> Measure:
    """Measure as `harness run` does, each time into a folder of its own, which is gone on with if it is there."""

    def measure(jobs: Sequence[Job], folder: Path, observer: Observer) -> Sequence[Measurement]:
        def ran(resume: bool) -> Sequence[Measurement]:
            return runner.run(
                Plan((), tuple(jobs), {op.name: op}),
                name="tune",
                folder=folder,
                device=device,
                plugins=tuple(plugins),
                command=("harness", "tune"),
                resume=resume,
                observer=observer,
                workers=workers,
            ).measurements

        if not folder.exists():
            return ran(resume=False)
        try:
            return ran(resume=True)
        except UsageError:  # of other code or of another machine than today's: the round begins anew
            shutil.rmtree(folder)
            return ran(resume=False)

    return measure


@dataclass(slots=True)
class Search:
    """The search at several cases at once. timing: of the last round. names: of each candidate's variant."""

    measure: Measure
    timing: Timing
    folder: Path
    watch: Until
    names: Callable[[Candidate], str]
    failed: dict[Case, dict[str, str]] = field(default_factory=dict)

    def run(self, candidates: Mapping[Case, Sequence[Candidate]]) -> dict[Case, Ranking]:
        """What was found at each case, of rounds that ended before the time was over."""
        left = {case: list(each) for case, each in candidates.items() if each}
        known: dict[Case, dict[str, Measurement]] = {case: {} for case in left}
        own = {case: len(_sizes(len(each))) for case, each in left.items()}
        rounds, complete = max(own.values(), default=0), True
        again: dict[Case, dict[str, Measurement]] = {case: {} for case in left}
        try:
            for number in range(rounds):
                # A case with few candidates begins when the others have as few left.
                due = {case: each for case, each in left.items() if number >= rounds - own[case]}
                self.watch.observer.note(
                    f"round {number + 1} of {rounds}: {plural(sum(map(len, due.values())), 'plan')}"
                )
                self._round(number, rounds, due, known)
                if number + 1 < rounds:
                    left |= {case: self._best(each, known[case]) for case, each in due.items()}
            self._round(rounds, rounds, self._claims(left, known), again)
        except SpentError:
            complete = False
        return {
            case: Ranking(
                self._timed(case, left[case], known[case], again[case]),
                len(candidates[case]),
                complete,
                tuple(self.failed.get(case, {}).items()),
            )
            for case in left
        }

    def _round(
        self,
        number: int,
        rounds: int,
        left: Mapping[Case, Sequence[Candidate]],
        known: Mapping[Case, dict[str, Measurement]],
    ) -> None:
        """Time the candidates that are left; those that fail are noted, and never come again."""
        if not left:
            return
        share = _share(number, rounds)
        precision = max(self.timing.precision, min(_COARSEST, self.timing.precision * share))
        timing = replace(self.timing, precision=precision, max_time=self.timing.max_time / share)
        owner = {
            replace(case, variant=self.names(candidate)): (case, candidate)
            for case, each in left.items()
            for candidate in each
        }
        for found in self._measured([Job(case, timing) for case in owner], owner, self.folder / f"round-{number}"):
            case, candidate = owner[found.case]
            if found.time is None:
                self.failed.setdefault(case, {})[candidate.text] = f"{found.status}: {found.error or ''}".rstrip(": ")
                known[case].pop(candidate.text, None)
            else:
                known[case][candidate.text] = found

    def _measured(
        self, jobs: Sequence[Job], owner: Mapping[Case, tuple[Case, Candidate]], folder: Path
    ) -> list[Measurement]:
        """The measurements of a round. A rule's plan that fails is measured again.

        A busy machine can make one measurement fail, and without the rule's time any other plan would count as faster.
        """
        first = self.measure(jobs, folder, self.watch)
        failed = {found.case for found in first if found.time is None and owner[found.case][1].rule}
        again = [job for job in jobs if job.case in failed]
        second = self.measure(again, folder.with_name(f"{folder.name}-again"), self.watch) if again else []
        return [*(found for found in first if found.case not in failed), *second]

    def _best(self, candidates: Sequence[Candidate], known: Mapping[str, Measurement]) -> list[Candidate]:
        """The candidates of the next round: the fastest third, at least _LAST, and the rule's."""
        right = [candidate for candidate in candidates if candidate.text in known]
        ordered = sorted(right, key=lambda candidate: known[candidate.text].time or math.inf)
        best = ordered[: max(_LAST, -(-len(candidates) // _FACTOR))]
        return [candidate for candidate in right if candidate in best or candidate.rule]

    def _claims(
        self, left: Mapping[Case, Sequence[Candidate]], known: Mapping[Case, Mapping[str, Measurement]]
    ) -> dict[Case, list[Candidate]]:
        """The fastest candidate and the rule's of each case where they differ: both are measured once more.

        The fastest of several was also the luckiest, so its claim must hold with times by which it wasn't chosen.
        """
        found = {}
        for case, each in left.items():
            right = [candidate for candidate in each if candidate.text in known[case]]
            best = min(right, key=lambda candidate: known[case][candidate.text].time or math.inf, default=None)
            both = [candidate for candidate in right if candidate is best or candidate.rule]
            if len(both) > 1:
                found[case] = both
        return found

    def _timed(
        self,
        case: Case,
        candidates: Sequence[Candidate],
        known: Mapping[str, Measurement],
        again: Mapping[str, Measurement],
    ) -> tuple[TimedPlan, ...]:
        """The candidates that are left with their times; the rule's first unless another one is surely faster.

        again: what was measured once more. A candidate that wasn't isn't surely faster.
        """
        right = [c for c in candidates if c.text in known and c.text not in self.failed.get(case, {})]
        right.sort(key=lambda candidate: known[candidate.text].time or math.inf)
        found = [_of(candidate, again.get(candidate.text, known[candidate.text])) for candidate in right]
        rule = next((timed for timed in found if timed.rule), None)
        if rule and (right[0].text not in again or found[0].high >= rule.low):
            found = [rule, *(timed for timed in found if timed is not rule)]
        return tuple(found)


def _of(candidate: Candidate, measured: Measurement) -> TimedPlan:
    middle = statistics.median(measured.samples)
    low, high = stats.median_interval(measured.samples) or (min(measured.samples), max(measured.samples))
    return TimedPlan(dict(candidate.plan), middle, low, high, candidate.rule)


def schedule(counts: Iterable[int], timing: Timing) -> list[tuple[int, float]]:
    """For each round of cases with so many candidates: how many plans are timed, each for so many seconds at most."""
    cases = [_sizes(count) for count in counts if count]
    rounds = max(map(len, cases), default=0)
    found = []
    for number in range(rounds):
        # The rule's plan may be one more, after the first round of a case.
        due = [sizes[len(sizes) - rounds + number] for sizes in cases if number >= rounds - len(sizes)]
        new = sum(number == rounds - len(sizes) for sizes in cases)
        found.append((sum(due) + len(due) - new, timing.max_time / _share(number, rounds)))
    again = sum(sizes[0] > 1 for sizes in cases)
    return [*found, (2 * again, timing.max_time)] if again else found


def _share(number: int, rounds: int) -> int:
    """How many times the time of a round the last one has. What is measured once more has the time of the last one."""
    return int(_FACTOR ** max(0, rounds - 1 - number))


def _sizes(count: int) -> list[int]:
    """How many of so many candidates are in each round, until at most _LAST are left."""
    sizes = [count]
    while sizes[-1] > _LAST:
        sizes.append(max(_LAST, -(-sizes[-1] // _FACTOR)))
    return sizes
