"""Which cases a gate measures: those of the working tree's scenarios, as either code understands them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from harness import scenario
from harness.errors import InputError, Problem
from harness.gate.records import Side
from harness.model import Case, Job, Scenario
from harness.ops import Op
from harness.processes.messages import Surveyed
from harness.scenario import Definition, Selection

SIDES: tuple[Side, Side] = ("now", "base")
PRECISION, MAX_TIME = 0.003, 0.5
"""Many short processes tell more than a few long ones, so a case is timed less narrowly than in a run."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A scenario file that the base can load and the working tree can't, and why."""

    file: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the working tree asks for. files: those that it can load; broken: the others, with all their problems.

    known: ids of all cases of the scenarios, whether they are to be measured or not.
    """

    scenarios: tuple[Scenario, ...]
    jobs: tuple[Job, ...]
    files: tuple[Path, ...]
    broken: Mapping[Path, InputError]
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class Cases:
    """What each side measures: first the common cases, in the same order, then what it alone knows."""

    scenarios: tuple[Scenario, ...]
    jobs: Mapping[Side, tuple[Job, ...]]
    broken: tuple[Broken, ...] = ()

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job once."""
        return tuple({job.case.id: job for side in SIDES for job in self.jobs[side]}.values())


def wanted(files: Sequence[Path], catalogue: Mapping[str, Op], selection: Selection) -> Wanted:
    """The cases of the scenario files, less the library's where nobody asked for them.

    Raises as `scenario.plan` does, but keeps the problems of a file: the base may know what it speaks of.
    """
    broken: dict[Path, InputError] = {}
    for file in files:
        try:
            scenario.load([file], catalogue)
        except InputError as error:
            broken[file] = error
    whole = tuple(file for file in files if file not in broken)
    if not whole:
        return Wanted((), (), (), broken, frozenset())
    definitions = scenario.load(whole, catalogue)
    every = scenario.plan(definitions, catalogue, Selection(selection.device))
    ours = [_without_libraries(d, catalogue[d.op], selection) for d in definitions]
    plan = scenario.plan(ours, catalogue, selection)
    jobs = tuple(_timed(job, selection) for job in plan.jobs)
    return Wanted(plan.scenarios, jobs, whole, broken, frozenset(job.case.id for job in every.jobs))


def common(asked: Wanted, base: Surveyed, selection: Selection) -> Cases:
    """What each side measures, given what the base makes of the files: the whole ones, then the broken ones.

    Raises InputError for files that neither of them can load.
    """
    loaded = dict(zip((*asked.files, *asked.broken), base.files, strict=True))
    hopeless = [error for file, error in asked.broken.items() if loaded[file] is None]
    if hopeless:
        raise InputError([problem for error in hopeless for problem in error.problems])
    known = set(base.known)
    shared = [job for job in asked.jobs if job.case.id in known]
    new = [job for job in asked.jobs if job.case.id not in known]
    gone = {job.case.id: job for file in asked.files for job in _gone(asked, loaded[file] or (), selection)}
    broken = tuple(Broken(str(file), error.problems) for file, error in asked.broken.items())
    return Cases(asked.scenarios, {"base": (*shared, *gone.values()), "now": (*shared, *new)}, broken)


def _gone(asked: Wanted, of_base: Sequence[Job], selection: Selection) -> Iterator[Job]:
    """Cases that only the base finds in a file that both can load."""
    for job in of_base:
        chosen = not selection.only or any(fnmatchcase(job.case.id, glob) for glob in selection.only)
        if chosen and job.case.id not in asked.known and not is_library(job.case.variant):
            yield _timed(job, selection)


def is_library(variant: str) -> bool:
    """Whether a variant is somebody else's code, of which both sides have the same."""
    return variant in ("eager", "compile") or variant.startswith("peer:")


def is_control(case: Case) -> bool:
    """Whether a case is a library's copy: where that gets slower, the machine did."""
    return case.op == "copy" and case.variant in ("eager", "memcpy")


def scenario_of(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """The name of the scenario that each case belongs to, by case id; the first one's where it is in several."""
    return {case: scenario.name for scenario in reversed(scenarios) for case in scenario.cases}


def _without_libraries(definition: Definition, op: Op, selection: Selection) -> Definition:
    """Only our variants, and the baseline where a floor is over it; all of them where they were listed or picked."""
    if selection.only or set(definition.variants) != set(op.variants):
        return definition
    on_device = [name for name in definition.variants if selection.device in op.variants[name].devices]
    ours = [name for name in on_device if not is_library(name)]
    if not ours or definition.op == "copy":
        return definition
    if any(floor.metric == "speedup" for floor in definition.expect) and definition.baseline not in ours:
        ours.append(definition.baseline)
    return replace(definition, variants=tuple(ours))


def _timed(job: Job, selection: Selection) -> Job:
    """The job, timed as the gate does unless the command line says otherwise."""
    given = job.timing
    precision = selection.precision or max(given.precision, PRECISION)
    return replace(
        job, timing=replace(given, precision=precision, max_time=selection.max_time or min(given.max_time, MAX_TIME))
    )
