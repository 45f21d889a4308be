"""`harness profile`: what a profiler says of cases, or of a user's own program."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness.cli import completion, profile_program, tool_options
from harness.cli.choosing import Variants
from harness.cli.group import alone
from harness.cli.options import Device, Only, Ops
from harness.errors import Exit, UsageError, brief, nearest

if TYPE_CHECKING:
    from harness.model import Attachment, Job
    from harness.profile import Tool

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness profile ncu bias_add --only 'bias_add/index64/float32/*'\n"
    "  harness profile torch prelu --variants eager,tuned\n"
    "  harness profile ncu --run reports/mine --only '*/tuned/*'\n"
    "  harness profile nsys prelu --print           to run it elsewhere\n"
    "  harness profile ncu --run reports/mine --import tuned.ncu-rep\n"
    "  harness profile nsys --import mine.sqlite    any recording's kernels, ranges\n"
    "  harness profile torch -- python train.py     a program of your own\n"
    "  harness profile torch -- torchrun --nproc-per-node 2 train.py\n"
    "  harness profile torch --import FOLDER        traces of several ranks"
)
_PROGRAM = "harness.program"
"""Where the arguments behind '--' are kept for the command."""
_OPTIONS = "harness.tool_options"
"""Where the options of tools that were given are kept for the command."""


class ProfileCommand(TyperCommand):
    """`profile`: what stands behind '--' is a program, not a scenario. Tools have options and examples of their own."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters; the options of tools stand ahead of --help."""
        *own, last = super().get_params(ctx)
        return [*own, *tool_options.parameters(), last]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, and what each tool tells."""
        self.epilog = f"{EXAMPLES}{tool_options.epilog()}"
        super().format_epilog(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed; a program is put aside."""
        if "--" in args:
            ctx.meta[_PROGRAM] = args[args.index("--") + 1 :]
            args = args[: args.index("--")]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Ctrl-C ends it with 130, and SIGTERM with 143; no process that it started goes on."""

        def leave(number: int, _frame: object) -> None:
            raise typer.Exit(128 + number)

        ctx.meta[_OPTIONS] = tool_options.taken(ctx.params)
        previous = signal.signal(signal.SIGTERM, leave)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
        finally:
            signal.signal(signal.SIGTERM, previous)


@app.command("profile", cls=ProfileCommand, epilog=EXAMPLES)
def command(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="One of the tools below.", show_default=False)],
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
        Path | None,
        typer.Option(
            "--import",
            metavar="FILE",
            help="Read a file of the tool that was made elsewhere; a folder with ranks' traces.",
        ),
    ] = None,
    wait: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="A program: steps of its optimizer before the recording; 10 unless told."
        ),
    ] = None,
    families: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Families of your own kernels, a line each: 'attention ^my_kernel'."),
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="A program: steps of its optimizer to record then; 5 unless told."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="A program of torchrun: ranks to record, as 0,4-7; all unless told."),
    ] = None,
) -> None:
    """Say what a profiler sees of cases, beside their times.

    The cases are timed first, unless a run is named by --run. Then each is prepared, checked, and called a few times
    under the tool. What it found stands in the run's folder, and in its report.
    """
    from harness.families import read as read_families
    from harness.profile import Ways, tools

    known, given = tools(), ctx.meta[_OPTIONS]
    if families is not None:
        read_families(families)
    if tool not in known:
        raise UsageError(f"no tool is named '{tool}'", nearest(tool, known))
    program = ctx.meta.get(_PROGRAM)
    if program is not None:
        others = (scenarios, run, only, variants, device, ops, print_only, import_file, given)
        profile_program.run(tool, program, output, (wait, active, ranks), refused=any(others))
        return
    if (wait, active, ranks) != (None, None, None):
        raise UsageError("--wait, --active and --ranks are for a program behind '--'", "leave them out")
    _refuse_together(scenarios, run, output, import_file, print_only=print_only)
    tool_options.refuse_others(tool, given)
    plugins = tuple(ops or ())
    chosen = {"only": only, "variants": variants}
    folder = run or output or Path("reports") / f"profile-{tool}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if import_file:
        if import_file.is_dir():
            profile_program.show_ranks(tool, import_file, output, refused=run is not None)
            return
        _import(known[tool], import_file, run, plugins, **chosen)
    elif print_only:
        planned = _of_run(run, **chosen) if run else _planned(scenarios or [], device, plugins, **chosen)
        _print_commands(tool, *planned, plugins, folder, given)
    else:
        code: int = Exit.OK
        if run is None:
            known[tool].refuse()  # before minutes of timing
            code = _time(scenarios or [], device, plugins, folder, **chosen)
        jobs, kind = _of_run(folder, **chosen)
        _refuse_another(folder, jobs, kind, plugins, same_kind=Ways.of(known[tool]).any_machine)
        if code := _profile(tool, jobs, kind, plugins, folder, given) or code:
            raise typer.Exit(code)


def _refuse_together(
    scenarios: list[str] | None, run: Path | None, output: Path | None, import_file: Path | None, *, print_only: bool
) -> None:
    """Raise UsageError for options that contradict each other."""
    if import_file and print_only:
        raise UsageError("--print and --import exclude each other", "name one of them")
    if import_file and scenarios:
        raise UsageError("--import takes a run that the file is about, not scenarios", "name it: --run FOLDER")
    if run and output:
        raise UsageError("--output is the folder of a new run, --run the folder of an old run", "name one of them")
    if bool(scenarios) == (run is not None) and not import_file:
        raise UsageError("name either scenarios or --run", "'harness list scenarios' shows the bundled ones")


def _import(tool: Tool, file: Path, run: Path | None, plugins: tuple[Path, ...], **chosen: Chosen) -> None:
    """Show what a file tells, and attach it to the run if there is one."""
    from harness import foreign, store
    from harness.ops import Catalogue

    try:
        foreign.refuse_special(file)
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror}", "name a file that the tool wrote") from None
    Catalogue(plugins)  # whose ops say of which families their kernels are
    if run is None:
        _show(tool.imported(file, []))
        return
    jobs, _ = _of_run(run, **chosen)
    found = tool.imported(file, [job.case.id for job in jobs])
    store.attach(run, found)
    _tell(run, found, plugins)


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
    """The cases of a run that have a time, and its kind of device. Tells how many other cases it has."""
    from harness import units
    from harness.cli import values
    from harness.model import Job
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
    return _alone([Job(result.case) for result in timed]), run.header.machine.kind


def _refuse_another(
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


def _alone(jobs: Sequence[Job]) -> list[Job]:
    """The cases of one device. Raises UsageError if there is none."""
    alone = [job for job in jobs if job.case.world == 1]
    if not alone:
        raise UsageError("every case is one of several devices", "profile cases with world=1")
    if less := len(jobs) - len(alone):
        typer.echo(f"left out: {less} of several devices", err=True)
    return alone


def _time(
    scenarios: Sequence[str], device: str | None, plugins: tuple[Path, ...], folder: Path, **chosen: Chosen
) -> int:
    """Time the cases by `harness run`, into the folder. Gives its exit code: 0, or the code for cases that failed.

    Raises typer.Exit if nothing could be timed.
    """
    import subprocess

    from harness.processes import python

    options = [f"--{name}={value}" for name, values in chosen.items() for value in values or ()]
    options += [f"--ops={plugin}" for plugin in plugins] + ([f"--device={device}"] if device else [])
    command = python.command("harness", ["run", *scenarios, *options, f"--output={folder}"])
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=python.environment()) as timing:
        try:
            code = timing.wait()
        except BaseException:
            timing.terminate()
            raise
    # Cases that failed have no time, and aren't profiled.
    if code not in (Exit.OK, Exit.CASES_FAILED):
        raise typer.Exit(code)
    return code


def _print_commands(
    tool: str, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...], folder: Path, given: Mapping[str, int]
) -> None:
    from harness.profile import _procedure

    part = _procedure.prepared(tool, jobs, device=kind, plugins=plugins, folder=folder, options=given)
    for line in part.commands:
        typer.echo(_procedure.shown(line))


def _profile(
    tool: str, jobs: Sequence[Job], kind: str, plugins: tuple[Path, ...], folder: Path, given: Mapping[str, int]
) -> int:
    """Run the cases under the tool, and keep what it found. Gives the exit code: for cases that failed, or 0."""
    from harness import store
    from harness.profile import _procedure
    from harness.profile._request import CaseRan

    failed: set[str] = set()
    done: Counter[str] = Counter()

    def told(ran: CaseRan, which: str) -> None:
        done[which] += 1
        if ran.status not in ("ok", "unsupported"):
            failed.add(ran.case)
        run = f", run {which}" if which else ""
        ended = f"{ran.status}: {brief(ran.error)}" if ran.error else "profiled"
        typer.echo(f"[{done[which]}/{len(jobs)}{run}] {ran.case}: {ended}", err=True)

    found = _procedure.profile(
        tool,
        jobs,
        device=kind,
        plugins=plugins,
        folder=folder,
        told=told,
        options=given,
        keep=lambda attachments: store.attach(folder, attachments),
    )
    _tell(folder, found.attachments, plugins)
    for problem in found.problems:
        typer.echo(f"warning: {tool}: {problem}", err=True)
    if failed:
        typer.echo(f"{len(failed)} of {len(jobs)} cases failed under {tool}", err=True)
    return Exit.CASES_FAILED if failed or found.problems else Exit.OK


def _tell(folder: Path, attachments: Sequence[Attachment], plugins: Sequence[Path]) -> None:
    """Print what was found, and render the run's report again."""
    from harness.cli import run

    _show(attachments)
    _show_verdicts(folder, attachments)
    run.write_report(folder, plugins)
    typer.echo(f"report: {folder}{os.sep}")


def _show(attachments: Sequence[Attachment]) -> None:
    """Print the tables of each case."""
    from harness.cli.console import open_console
    from harness.report import kernels, range_tables, terminal
    from harness.report.tree import Page

    terminal.show(Page("", (*kernels.tables(attachments), *range_tables.blocks(attachments))), open_console())


def _show_verdicts(folder: Path, attachments: Sequence[Attachment]) -> None:
    """Print what ops say of the run's cases, with what was found of them before, if a tool wants it shown."""
    from harness.cli.console import open_console
    from harness.ops import known_cases
    from harness.profile import Ways, tools
    from harness.report import build, terminal

    wanted = {name for name, tool in tools().items() if Ways.of(tool).verdicts}
    if wanted & {attachment.tool for attachment in attachments}:
        terminal.show(build.screen_of_verdicts(known_cases.load(folder)), open_console())
