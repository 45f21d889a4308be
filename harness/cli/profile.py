"""`harness profile`: what a profiler says of cases, or of a user's own program."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness.cli import completion
from harness.cli.choosing import Variants
from harness.cli.options import Device, Only, Ops
from harness.errors import Exit, UsageError, brief, nearest

if TYPE_CHECKING:
    from harness.model import Attachment, Job

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness profile ncu bias_add --only 'bias_add/index64/float32/*'\n"
    "  harness profile torch prelu --variants eager,tuned\n"
    "  harness profile ncu --run reports/mine --only '*/tuned/*'\n"
    "  harness profile nsys prelu --print           the command line, to run it elsewhere\n"
    "  harness profile ncu --run reports/mine --only '*/tuned/*' --import tuned.ncu-rep\n"
    "  harness profile nsys --import mine.sqlite    the kernels of any recording\n"
    "  harness profile torch -- python train.py     a program of your own\n"
    "\n\b\nTools:\n"
    "  ncu    hardware counters of each kernel: bytes, stalls, pipes (Nsight Compute)\n"
    "  nsys   a timeline of kernels, copies and calls (Nsight Systems)\n"
    "  torch  shares of the time by kernel and by kind of kernel; needs nothing else"
)
_PROGRAM = "harness.program"
"""Where the arguments behind '--' are kept for the command."""


class ProfileCommand(TyperCommand):
    """`profile`: what stands behind '--' is a program, not a scenario."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed; a program is put aside."""
        own, program = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta[_PROGRAM] = program
        return super().parse_args(ctx, own)


def command(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="ncu, nsys or torch.", show_default=False)],
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCENARIO",
            help="Scenario files, folders of them, or bundled names.",
            autocompletion=completion.scenarios,
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="FOLDER", help="Profile cases of this run, in place of a new one.")
    ] = None,
    only: Only = None,
    variants: Variants = None,
    device: Device = None,
    ops: Ops = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of a new run. Default: one in reports/.")
    ] = None,
    print_only: Annotated[
        bool, typer.Option("--print", help="Print the tool's command lines, and run nothing.")
    ] = False,
    import_file: Annotated[
        Path | None, typer.Option("--import", metavar="FILE", help="Read a file of the tool that was made elsewhere.")
    ] = None,
) -> None:
    """Say what a profiler sees of cases, beside their times.

    The cases are timed first, unless a run is named by --run. Then each is prepared, checked, and called a few times
    under the tool. What it found stands in the run's folder, and in its report.
    """
    from harness.profile import tools

    known = tools()
    if tool not in known:
        raise UsageError(f"no tool is named '{tool}'", nearest(tool, known))
    if program := ctx.meta.get(_PROGRAM):
        _profile_program(tool, program, output)
        return
    if import_file and run is None and not scenarios:
        _show(known[tool].imported(import_file, []))
        return
    if bool(scenarios) == (run is not None):
        raise UsageError("name either scenarios or --run", "'harness list scenarios' shows the bundled ones")
    if import_file and run is None:
        raise UsageError("--import takes a run that the file is about, not scenarios", "name it: --run FOLDER")
    plugins = tuple(ops or ())
    chosen = {"only": only, "variants": variants}
    folder = run or output or Path("reports") / f"profile-{tool}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if run is None and print_only:
        jobs, kind = _planned(scenarios or [], device, plugins, **chosen)
    else:
        if run is None:
            known[tool].refuse()
            _time(scenarios or [], device, plugins, folder, **chosen)
        jobs, kind = _of_run(folder, **chosen)
    if print_only:
        _print_commands(tool, jobs, kind, plugins, folder)
    elif import_file:
        _keep(folder, known[tool].imported(import_file, [job.case.id for job in jobs]), plugins)
    else:
        _refuse_another(folder, jobs, kind, plugins)
        _profile(tool, jobs, kind, plugins, folder)


Chosen = Sequence[str] | None


def _planned(
    scenarios: Sequence[str], device: str | None, plugins: tuple[Path, ...], *, only: Chosen, variants: Chosen
) -> tuple[list[Job], str]:
    """The cases of scenarios, and the kind of device."""
    from harness import devices, scenario
    from harness.cli import values
    from harness.ops import Catalogue

    catalogue = Catalogue(plugins)
    kind = devices.choose(device)
    definitions = scenario.load(scenario.find(scenarios), catalogue)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), variants=values.names(list(variants or ())))
    return _alone(scenario.plan(definitions, catalogue, selection).jobs), kind


def _of_run(folder: Path, *, only: Chosen, variants: Chosen) -> tuple[list[Job], str]:
    """The cases of a run that have a time, and its kind of device."""
    from fnmatch import fnmatchcase

    from harness import store
    from harness.cli import values
    from harness.model import Job

    run = store.load(folder)
    named = values.names(list(variants or ()))
    jobs = [
        Job(result.case)
        for result in run.results
        if result.status == "ok"
        and (not only or any(fnmatchcase(result.case.id, glob) for glob in only))
        and (not named or result.case.variant in named)
    ]
    if not jobs:
        raise UsageError(f"{folder}: no case with a time is like that", "leave out --only and --variants to see all")
    return _alone(jobs), run.header.machine.kind


def _refuse_another(folder: Path, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...]) -> None:
    """Raise UsageError if the run is of another machine, or of other code: counters must be of what was timed."""
    from harness import devices, source, store
    from harness.ops import Catalogue

    run, catalogue = store.load(folder), Catalogue(plugins)
    machine = devices.kinds()[devices.choose(kind)].machine()
    again = "measure anew: harness profile TOOL SCENARIO, without --run"
    if machine.fingerprint != run.header.machine.fingerprint:
        raise UsageError(f"{folder}: is a run of another machine ({run.header.machine.name})", again)
    wanted = {job.case.id for job in jobs}
    timed = {m.case.op: m.code.digest for m in run.measurements if m.case.id in wanted and m.code}
    for name, digest in timed.items():
        op = catalogue.get(name)
        if op is None or op.file is None or source.code(name, op.file).digest != digest:
            raise UsageError(f"{folder}: '{name}' was measured with other code than is here", again)


def _alone(jobs: Sequence[Job]) -> list[Job]:
    """The cases of one device. Raises UsageError if there is none."""
    alone = [job for job in jobs if job.case.world == 1]
    if not alone:
        raise UsageError("every case is one of several devices", "profile cases with world=1")
    return alone


def _time(
    scenarios: Sequence[str], device: str | None, plugins: tuple[Path, ...], folder: Path, **chosen: Chosen
) -> None:
    """Time the cases by `harness run`, into the folder. Raises typer.Exit if that can't be done."""
    import subprocess

    from harness.processes import python

    options = [f"--{name}={value}" for name, values in chosen.items() for value in values or ()]
    options += [f"--ops={plugin}" for plugin in plugins] + ([f"--device={device}"] if device else [])
    command = python.command("harness", ["run", *scenarios, *options, f"--output={folder}"])
    code = subprocess.run(command, stdout=subprocess.DEVNULL, env=python.environment(), check=False).returncode
    # Cases that failed have no time, and aren't profiled.
    if code not in (Exit.OK, Exit.CASES_FAILED):
        raise typer.Exit(code)


def _print_commands(tool: str, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...], folder: Path) -> None:
    from harness.profile import _procedure

    part = _procedure.prepared(tool, jobs, device=kind, plugins=plugins, folder=folder)
    for line in part.commands:
        typer.echo(_procedure.shown(line))


def _profile(tool: str, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...], folder: Path) -> None:
    """Run the cases under the tool, and keep what it found. Raises typer.Exit if a case failed under it."""
    from harness.profile import _procedure
    from harness.profile._request import CaseRan

    failed: list[CaseRan] = []
    done: Counter[str] = Counter()

    def told(ran: CaseRan, which: str) -> None:
        done[which] += 1
        if ran.status not in ("ok", "unsupported"):
            failed.append(ran)
        run = f", run {which}" if which else ""
        ended = f"{ran.status}: {brief(ran.error)}" if ran.error else "profiled"
        typer.echo(f"[{done[which]}/{len(jobs)}{run}] {ran.case}: {ended}", err=True)

    try:
        found = _procedure.profile(tool, jobs, device=kind, plugins=plugins, folder=folder, told=told)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _keep(folder, found.attachments, plugins)
    if failed:
        typer.echo(f"{len({ran.case for ran in failed})} of {len(jobs)} cases failed under {tool}", err=True)
        raise typer.Exit(Exit.CASES_FAILED)


def _keep(folder: Path, attachments: Sequence[Attachment], plugins: Sequence[Path]) -> None:
    """Attach what was found to the run, print it, and render the run's report again."""
    from harness import store
    from harness.cli import run

    store.attach(folder, attachments)
    _show(attachments)
    run.write_report(folder, plugins)
    typer.echo(f"report: {folder}{os.sep}")


def _show(attachments: Sequence[Attachment]) -> None:
    """Print a table for each case."""
    from harness.cli.console import open_console
    from harness.report import kernels, terminal
    from harness.report.tree import Page

    terminal.show(Page("", tuple(kernels.tables(attachments))), open_console())


def _profile_program(tool: str, program: Sequence[str], output: Path | None) -> None:
    """Profile a user's own program by torch's profiler, and end with its exit code."""
    from harness.cli.console import open_console
    from harness.profile import torch
    from harness.report import terminal, timeline

    if tool != "torch":
        raise UsageError(f"{tool} runs programs by itself", "'harness profile torch -- python train.py' needs no tool")
    folder = output or Path("reports") / f"profile-torch-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    found = torch.of_script(program, folder)
    terminal.show(timeline.page(found.timeline, found.trace), open_console())
    for path in timeline.write(found.timeline, found.trace, folder):
        typer.echo(path)
    raise typer.Exit(found.exit_code if found.exit_code >= 0 else 128 - found.exit_code)
