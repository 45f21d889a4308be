"""Successive halving: rounds of runs, each with fewer candidates and more time for each."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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


class _Quick(Workers):
    """Processes that don't measure the machine for each round: a kept limit is believed, or there is none."""

    def limits(self, needs: Needs, report: Any, fresh: bool = False) -> Limits:  # noqa: ARG002 - as Workers has it
        return limits.recall(kinds()[self._device].machine()) or Limits()

    def limits_again(self, start: Limits, report: Any) -> Limits:  # noqa: ARG002 - as above
        return start


Measure = Callable[[Sequence[Job], Path, Observer], Sequence[Measurement]]
"""Measures jobs into a folder, what the folder has already left out."""


def in_runs(op: Op, device: str, plugins: Sequence[Path]) -> Measure:
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
                workers=_Quick(device, plugins),
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
        tried = {case: len(each) for case, each in candidates.items()}
        left = {case: list(each) for case, each in candidates.items() if each}
        known: dict[Case, dict[str, Measurement]] = {case: {} for case in left}
        rounds, complete = _rounds(max(map(len, left.values()), default=0)), True
        for number in range(rounds if left else 0):
            self.watch.observer.note(f"round {number + 1} of {rounds}: {sum(map(len, left.values()))} plans")
            try:
                self._round(number, rounds, left, known)
            except SpentError:
                complete = False
                break
            if number + 1 < rounds:
                left = {case: self._best(each, known[case]) for case, each in left.items()}
        return {
            case: Ranking(
                self._timed(left[case], known[case]), tried[case], complete, tuple(self.failed.get(case, {}).items())
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
        share = _FACTOR ** (rounds - 1 - number)
        precision = max(self.timing.precision, min(_COARSEST, self.timing.precision * share))
        timing = replace(self.timing, precision=precision, max_time=self.timing.max_time / share)
        owner = {
            replace(case, variant=self.names(candidate)): (case, candidate)
            for case, each in left.items()
            for candidate in each
        }
        for found in self.measure([Job(case, timing) for case in owner], self.folder / f"round-{number}", self.watch):
            case, candidate = owner[found.case]
            if found.time is None:
                self.failed.setdefault(case, {})[candidate.text] = f"{found.status}: {found.error or ''}".rstrip(": ")
                known[case].pop(candidate.text, None)
            else:
                known[case][candidate.text] = found

    def _best(self, candidates: Sequence[Candidate], known: Mapping[str, Measurement]) -> list[Candidate]:
        """The candidates of the next round: the fastest third, at least _LAST, and the rule's."""
        right = [candidate for candidate in candidates if candidate.text in known]
        ordered = sorted(right, key=lambda candidate: known[candidate.text].time or math.inf)
        best = ordered[: max(_LAST, -(-len(candidates) // _FACTOR))]
        return [candidate for candidate in right if candidate in best or candidate.rule]

    def _timed(self, candidates: Sequence[Candidate], known: Mapping[str, Measurement]) -> tuple[TimedPlan, ...]:
        """The candidates that are left with their times; the rule's first unless another one is surely faster."""
        found = [_of(candidate, known[candidate.text]) for candidate in candidates if candidate.text in known]
        found.sort(key=lambda timed: timed.time)
        rule = next((timed for timed in found if timed.rule), None)
        if rule and found[0].high >= rule.low:
            found = [rule, *(timed for timed in found if timed is not rule)]
        return tuple(found)


def _of(candidate: Candidate, measured: Measurement) -> TimedPlan:
    middle = statistics.median(measured.samples)
    low, high = stats.median_interval(measured.samples) or (min(measured.samples), max(measured.samples))
    return TimedPlan(dict(candidate.plan), middle, low, high, candidate.rule)


def _rounds(count: int) -> int:
    """Rounds for so many candidates, until at most _LAST are left."""
    rounds = 1
    while count > _LAST:
        count, rounds = max(_LAST, -(-count // _FACTOR)), rounds + 1
    return rounds
