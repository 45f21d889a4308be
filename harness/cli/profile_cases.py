"""Which cases `harness profile` runs under a tool: of scenarios, or of a run, as far as the tool takes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.model import Case, Job, Run

Chosen = Sequence[str] | None


def planned(
    scenarios: Path | Sequence[str],
    tool: str,
    device: str | None,
    plugins: tuple[Path, ...],
    *,
    only: Chosen,
    variants: Chosen,
) -> tuple[list[Job], str]:
    """The cases of scenarios, or of a run's folder, that a tool takes, and the kind of device."""
    if isinstance(scenarios, Path):
        return of_run(scenarios, tool, only=only, variants=variants)
    jobs, kind = of_scenarios(scenarios, device, plugins, only=only, variants=variants)
    return _taken(tool, jobs), kind


def of_scenarios(
    scenarios: Sequence[str], device: str | None, plugins: tuple[Path, ...], *, only: Chosen, variants: Chosen
) -> tuple[Sequence[Job], str]:
    """The cases of scenarios, each with the timing that its scenario asks for, and the kind of device."""
    from harness import devices, scenario
    from harness.cli import values
    from harness.ops import Catalogue

    catalogue = Catalogue(plugins)
    kind = devices.choose(device)
    definitions = scenario.load(scenario.find(scenarios, catalogue), catalogue)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), variants=values.names(list(variants or ())))
    return scenario.plan(definitions, catalogue, selection).jobs, kind


def timed_as(jobs: Sequence[Job], wanted: Sequence[Job]) -> list[Job]:
    """Cases of a run with the timing of `wanted`, as far as that has them. A run doesn't keep a case's timing."""
    known = {job.case.id: job for job in wanted}
    return [known.get(job.case.id, job) for job in jobs]


def of_run(folder: Path, tool: str, *, only: Chosen, variants: Chosen) -> tuple[list[Job], str]:
    """The cases of a run that have a time and that a tool takes, and its kind of device.

    A case may take as long as the usual limit, or as long as it took in the run if that is longer. Tells how many
    other cases the run has.
    """
    from harness import units
    from harness.cli import values
    from harness.model import Job, Timing
    from harness.ops import known_cases

    run = known_cases.load(folder)
    named = values.names(list(variants or ()))
    meant = [
        result
        for result in run.results
        if (not only or any(result.case.matches(glob) for glob in only)) and (not named or result.case.variant in named)
    ]
    if not meant:
        raise UsageError(f"{folder}: no case is like that", "leave out --only and --variants to have all")
    timed = [result for result in meant if result.status == "ok"]
    if not timed:
        raise UsageError(f"{folder}: no case has a time", "correct what its report says of them first")
    if less := len(meant) - len(timed):
        typer.echo(f"left out: {units.plural(less, 'case')} without a time", err=True)
    took = _took(run)
    jobs = [Job(one.case, Timing(timeout=max(Timing().timeout, took.get(one.case, 0.0)))) for one in timed]
    return _taken(tool, jobs), run.header.machine.kind


def _took(run: Run) -> dict[Case, float]:
    """The longest that each case of a run took in a process, in seconds."""
    longest: dict[Case, float] = {}
    for one in run.measurements:
        longest[one.case] = max(longest.get(one.case, 0.0), sum(seconds for _, seconds in one.phases))
    return longest


def refuse_another(
    folder: Path, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...], *, same_kind: bool = False
) -> None:
    """Raise UsageError if the run is of another machine, or of other code: counters must be of what was timed.

    same_kind: whether another machine with the same device will do.
    """
    from harness import devices
    from harness.ops import Catalogue, known_cases
    from harness.ops.codes import codes

    catalogue = Catalogue(plugins)
    run = known_cases.load(folder)
    machine = devices.kinds()[devices.choose(kind)].machine()
    again = "measure anew: harness profile TOOL SCENARIO, without --run"
    timed_on = run.header.machine
    same = machine.name == timed_on.name if same_kind else machine.fingerprint == timed_on.fingerprint
    if not same:
        raise UsageError(f"{folder}: is a run of another machine ({timed_on.name})", again)
    wanted = {job.case.id for job in jobs}
    timed = {(m.case.op, m.case.variant): m.code for m in run.measurements if m.case.id in wanted and m.code}
    here = codes((op for name, op in catalogue.items() if name in {op for op, _ in timed}), kind)
    for (name, variant), code in timed.items():
        if name not in catalogue or variant not in catalogue[name].variants:
            raise UsageError(f"{folder}: has cases of '{name}/{variant}', which isn't here", "name its file by --ops")
        if here.get((name, variant)) != code:
            raise UsageError(f"{folder}: '{name}' was measured with other code than is here", again)


def _taken(tool: str, jobs: Sequence[Job]) -> list[Job]:
    """The cases that a tool takes: all, or those of one device. Raises UsageError if there is none."""
    from harness.profile import Ways, tools

    if Ways.of(tools()[tool]).ranks:
        return list(jobs)
    alone = [job for job in jobs if job.case.world == 1]
    if not alone:
        with_ranks = ", ".join(name for name, one in tools().items() if Ways.of(one).ranks)
        raise UsageError(
            f"every case is one of several devices, which {tool} doesn't take",
            f"profile cases with world=1, or take another tool: {with_ranks}",
        )
    if less := len(jobs) - len(alone):
        typer.echo(f"left out: {less} of several devices", err=True)
    return alone


def refuse_ranks(recorded: Sequence[int], jobs: Sequence[Job]) -> None:
    """Raise UsageError if none of the ranks that are to be recorded is one of a case, or if no case has ranks."""
    worlds = sorted({job.case.world for job in jobs} - {1})
    if not recorded:
        return
    asked = ",".join(map(str, recorded))
    if not worlds:
        raise UsageError(f"--ranks {asked}: every case is of one device", "leave --ranks out")
    if recorded[0] >= worlds[0]:
        has = f"a case of {worlds[0]} devices has the ranks 0 to {worlds[0] - 1}"
        raise UsageError(f"--ranks {asked}: {has}", "name one of these, or choose other cases by --only")
