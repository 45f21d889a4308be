"""The cases that a gate measures: the working tree's scenarios, as either code understands them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness import scenario
from harness.errors import InputError, Problem
from harness.gate.records import Side
from harness.metrics import METRICS
from harness.model import LIBRARY_ROLES, Case, Job, Scenario, usual_role
from harness.ops import Op
from harness.ops.known_cases import recognised
from harness.processes.messages import Surveyed
from harness.processes.strictness import laxer, newly_spared
from harness.processes.untimed import newly_untimed
from harness.scenario import Definition, Selection

SIDES: tuple[Side, Side] = ("now", "base")
PRECISION, MAX_TIME = 0.003, 0.5
"""How a case is timed: less precisely than in a run, since many short processes tell more than a few long ones."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A scenario file that the base can load and the working tree can't, and why."""

    file: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the working tree asks for. files: scenarios that load; broken: scenarios that don't, with their problems.

    every: the scenarios with all their cases, whether the gate measures them or not. left_out: the variants that don't
    run on the device, and why, in one line; '' if all do.
    """

    scenarios: tuple[Scenario, ...]
    jobs: tuple[Job, ...]
    files: tuple[Path, ...]
    broken: Mapping[Path, InputError]
    every: tuple[Scenario, ...]
    left_out: str = ""

    @property
    def known(self) -> frozenset[str]:
        """Ids of all cases of the scenarios, whether the gate measures them or not."""
        return frozenset(key for scenario in self.every for key in scenario.cases)


@dataclass(frozen=True, slots=True)
class Cases:
    """What each side measures: first the common cases, in the same order, then the cases that only this side has.

    asked, before, untold, laxer, untimed: as in the evidence.
    """

    scenarios: tuple[Scenario, ...]
    jobs: Mapping[Side, tuple[Job, ...]]
    broken: tuple[Broken, ...] = ()
    asked: tuple[Scenario, ...] = ()
    before: tuple[Scenario, ...] = ()
    untold: tuple[str, ...] = ()
    laxer: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Job, ...]:
        """Every job once."""
        return tuple({job.case.id: job for side in SIDES for job in self.jobs[side]}.values())


def wanted(files: Sequence[Path], catalogue: Mapping[str, Op], selection: Selection) -> Wanted:
    """The cases of the scenario files, without variants of libraries that neither a scenario nor --only names.

    Raises what `scenario.plan` raises. For a file that can't be loaded its problems are kept instead, since the base
    may be able to load it.
    """
    broken: dict[Path, InputError] = {}
    for file in files:
        try:
            scenario.load([file], catalogue)
        except InputError as error:
            broken[file] = error
    whole = tuple(file for file in files if file not in broken)
    if not whole:
        return Wanted((), (), (), broken, ())
    definitions = scenario.load(whole, catalogue)
    every = scenario.plan(definitions, catalogue, Selection(selection.device))
    ours = [_without_libraries(d, catalogue[d.op], selection) for d in definitions]
    plan = scenario.plan(ours, catalogue, selection)
    jobs = tuple(_timed(job, selection) for job in plan.jobs)
    return Wanted(plan.scenarios, jobs, whole, broken, every.scenarios, every.left_out)


def common(
    asked: Wanted, base: Surveyed, catalogue: Mapping[str, Op], selection: Selection, old: Sequence[Path] = ()
) -> Cases:
    """What each side measures, given what the base finds in the files: whole files, broken files, old files.

    old: the scenario files as the base's revision has them. Their cases must still be there. Raises InputError for
    files of the working tree that neither side can load.
    """
    files = (*asked.files, *asked.broken, *old)
    found = [None if jobs is None else [_recognised(job, catalogue) for job in jobs] for jobs in base.files]
    loaded = dict(zip(files, found, strict=True))
    hopeless = [error for file, error in asked.broken.items() if loaded[file] is None]
    if hopeless:
        raise InputError([problem for error in hopeless for problem in error.problems])
    known = set(base.known)
    shared = [job for job in asked.jobs if job.case.id in known]
    new = [job for job in asked.jobs if job.case.id not in known]
    variants = [(job.case.op, job.case.variant) for job in shared]
    known_now = asked.known
    only_base = [job for file in (*asked.files, *old) for job in loaded[file] or () if job.case.id not in known_now]
    today = {job.case.id: _recognised(job, catalogue).case.id for jobs in base.files for job in jobs or ()}
    told_of = [[_renamed(scenario, today) for scenario in of_file] for of_file in base.scenarios]
    scenarios = dict(zip(files, told_of, strict=False))
    before = tuple(scenario for file in old for scenario in scenarios.get(file, ()))
    told = tuple(scenario for of_file in told_of for scenario in of_file)
    gone = {
        job.case.id: _timed(job, selection) for job in only_base if _is_wanted(job.case, told, catalogue, selection)
    }
    broken = tuple(Broken(str(file), error.problems) for file, error in asked.broken.items())
    jobs: dict[Side, tuple[Job, ...]] = {"base": (*shared, *gone.values()), "now": (*shared, *new)}
    return Cases(
        asked.scenarios,
        jobs,
        broken,
        asked=asked.every,
        before=before,
        untold=tuple(_untold(old, loaded, base)),
        laxer=tuple(_laxer(base, catalogue)),
        untimed=() if base.untimed is None else tuple(newly_untimed(base.untimed, variants, catalogue)),
    )


def _recognised(job: Job, catalogue: Mapping[str, Op]) -> Job:
    """The job of a case that the base has, as the working tree's ops know the case."""
    return replace(job, case=recognised(job.case, catalogue))


def _renamed(scenario: Scenario, today: Mapping[str, str]) -> Scenario:
    return replace(scenario, cases=tuple(today.get(key, key) for key in scenario.cases))


def _untold(old: Sequence[Path], loaded: Mapping[Path, object], base: Surveyed) -> Iterator[str]:
    """Why it isn't known what the base's scenarios ask for, one sentence each."""
    for file in old:
        if loaded[file] is None:
            yield f"the base can't load its own {file.name}, so nobody knows which cases and floors it should have"
    if old and not base.scenarios:
        yield "the harness of the base is too old to tell the floors and roles of its scenarios"


def _laxer(base: Surveyed, catalogue: Mapping[str, Op]) -> Iterator[str]:
    """What is checked less strictly than by the base, one sentence each; also that the base doesn't tell it."""
    yield from laxer(base.checks or (), catalogue)
    if base.spared is not None:
        yield from newly_spared(base.spared, (name for name, *_ in base.checks or ()), catalogue)
    if base.checks is None and any(file is not None for file in base.files):
        yield "the harness of the base is too old to tell how strictly its ops are checked"


def _is_wanted(case: Case, told: Sequence[Scenario], catalogue: Mapping[str, Op], selection: Selection) -> bool:
    """Whether a case that only the base has is measured: it is ours, and --only, if given, picks it.

    The base tells what was ours. An older one doesn't: then the variant's role now counts, else its name.
    """
    op = catalogue.get(case.op)
    variant = op.variants.get(case.variant) if op else None
    role = role_of(case.op, case.variant, told, variant.role if variant else "")
    chosen = not selection.only or any(case.matches(glob) for glob in selection.only)
    return chosen and role not in LIBRARY_ROLES


def is_control(case: Case, scenarios: Sequence[Scenario]) -> bool:
    """Whether a case is a library's copy: if that gets slower, the reason is the machine."""
    return role_of(case.op, case.variant, scenarios) == "control"


def role_of(op: str, variant: str, scenarios: Sequence[Scenario], otherwise: str = "") -> str:
    """The role that the first scenario with the variant gives it; else `otherwise`; else the usual role of its name."""
    stored = (dict(scenario.roles).get(variant) for scenario in scenarios if scenario.op == op)
    return next(filter(None, stored), otherwise or usual_role(op, variant))


def scenario_of(scenarios: Sequence[Scenario]) -> dict[str, str]:
    """The name of the scenario that each case belongs to, by case id. Of several scenarios the first counts."""
    return {case: scenario.name for scenario in reversed(scenarios) for case in scenario.cases}


def _without_libraries(definition: Definition, op: Op, selection: Selection) -> Definition:
    """Our variants, controls, and the baseline if a floor is over it; all variants if they were listed or picked."""
    if selection.only or set(definition.variants) != set(op.variants):
        return definition
    on_device = [name for name in definition.variants if op.variants[name].runs_on(selection.device)]
    if all(op.variants[name].is_library for name in on_device):
        return definition
    needed = {floor.variant for floor in definition.expect}
    if any(METRICS[floor.metric].relative == "variant" for floor in definition.expect):
        needed.add(definition.baseline)
    kept = [
        name
        for name in on_device
        if not op.variants[name].is_library or op.variants[name].role == "control" or name in needed
    ]
    return replace(definition, variants=tuple(kept))


def _timed(job: Job, selection: Selection) -> Job:
    """The job, timed as the gate does unless the command line says otherwise."""
    given = job.timing
    precision = selection.precision or max(given.precision, PRECISION)
    return replace(
        job, timing=replace(given, precision=precision, max_time=selection.max_time or min(given.max_time, MAX_TIME))
    )
