"""`harness profile`: what a profiler says of cases, or of a user's own program."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness import paths
from harness.cli import profile_cases, profile_program, tool_options
from harness.cli.choosing import Scenarios, Variants
from harness.cli.group import alone
from harness.cli.options import Device, Only, Ops
from harness.errors import Exit, UsageError, brief, nearest

if TYPE_CHECKING:
    from harness.model import Attachment, Job

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
    scenarios: Scenarios = None,
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
        typer.Option(
            metavar="LIST", help="A program of torchrun, cases of several devices: ranks to record, as 0,4-7."
        ),
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
    recorded = _recorded(tool, wait, active, ranks)
    _refuse_together(scenarios, run, output, import_file, print_only=print_only)
    tool_options.refuse_others(tool, given)
    plugins = tuple(ops or ())
    chosen = {"only": only, "variants": variants}
    folder = run or output or paths.new_report(f"profile-{tool}")
    asked = {"folder": folder, "plugins": plugins, "options": given, "ranks": recorded}
    if import_file:
        if import_file.is_dir():
            profile_program.show_ranks(tool, import_file, output, refused=run is not None)
            return
        _import(tool, import_file, run, plugins, **chosen)
    elif print_only:
        jobs, kind = profile_cases.planned(run or scenarios or [], tool, device, plugins, **chosen)
        profile_cases.refuse_ranks(recorded, jobs)
        _print_commands(tool, jobs, kind, **asked)
    else:
        code: int = Exit.OK
        wanted: Sequence[Job] = ()
        if run is None:
            known[tool].refuse()  # before minutes of timing
            wanted, _ = profile_cases.of_scenarios(scenarios or [], device, plugins, **chosen)
            profile_cases.refuse_ranks(recorded, wanted)
            code = _time(scenarios or [], device, plugins, folder, **chosen)
        jobs, kind = profile_cases.of_run(folder, tool, **chosen)
        jobs = profile_cases.timed_as(jobs, wanted)
        profile_cases.refuse_another(folder, jobs, kind, plugins, same_kind=Ways.of(known[tool]).any_machine)
        profile_cases.refuse_ranks(recorded, jobs)
        if code := _profile(tool, jobs, kind, **asked) or code:
            raise typer.Exit(code)


def _recorded(tool: str, wait: int | None, active: int | None, ranks: str | None) -> tuple[int, ...]:
    """The ranks of cases that are to be recorded; all if empty. Raises UsageError for options of programs."""
    from harness.cli import values

    if (wait, active) != (None, None):
        raise UsageError("--wait and --active are for a program behind '--'", "leave them out")
    if ranks is not None and tool != "torch":
        raise UsageError("--ranks is for the tool torch, which records each rank by itself", "leave --ranks out")
    return values.numbers(ranks or "")


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


def _import(name: str, file: Path, run: Path | None, plugins: tuple[Path, ...], **chosen: profile_cases.Chosen) -> None:
    """Show what a file of the tool of this name tells, and attach it to the run if there is one."""
    from harness import foreign, store
    from harness.ops import Catalogue
    from harness.profile import tools

    tool = tools()[name]

    try:
        foreign.refuse_special(file)
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror}", "name a file that the tool wrote") from None
    Catalogue(plugins)  # whose ops say of which families their kernels are
    if run is None:
        _show(tool.imported(file, []))
        return
    jobs, _ = profile_cases.of_run(run, name, **chosen)
    found = tool.imported(file, [job.case.id for job in jobs])
    store.attach(run, found)
    _tell(run, found, plugins)


def _time(
    scenarios: Sequence[str],
    device: str | None,
    plugins: tuple[Path, ...],
    folder: Path,
    **chosen: profile_cases.Chosen,
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


def _print_commands(tool: str, jobs: Sequence[Job], kind: str, **asked: Any) -> None:
    """Print the command lines that `_profile` would run. asked: what else `_procedure.prepared` takes."""
    from harness.profile import _procedure

    for alike in _procedure.of_one_world(jobs):
        for line in _procedure.prepared(tool, alike, device=kind, **asked).commands:
            typer.echo(_procedure.shown(line))


def _profile(
    tool: str, jobs: Sequence[Job], kind: str, *, folder: Path, plugins: tuple[Path, ...], **asked: Any
) -> int:
    """Run the cases under the tool, and keep what it found. Gives the exit code: for cases that failed, or 0.

    asked: what else `_procedure.profile` takes.
    """
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
        **asked,
        keep=lambda attachments: store.attach(folder, attachments),
    )
    _tell(folder, found.attachments, plugins)
    for problem in (*found.problems, *found.remarks):
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
    from harness.report import kernels, range_tables, rank_tables, terminal
    from harness.report.tree import Page

    every = (*kernels.tables(attachments), *range_tables.blocks(attachments), *rank_tables.blocks(attachments))
    terminal.show(Page("", every), open_console())


def _show_verdicts(folder: Path, attachments: Sequence[Attachment]) -> None:
    """Print what ops say of the run's cases, with what was found of them before, if a tool wants it shown."""
    from harness.cli.console import open_console
    from harness.ops import known_cases
    from harness.profile import Ways, tools
    from harness.report import build, terminal

    wanted = {name for name, tool in tools().items() if Ways.of(tool).verdicts}
    if wanted & {attachment.tool for attachment in attachments}:
        terminal.show(build.screen_of_verdicts(known_cases.load(folder)), open_console())
