"""`harness run`: measure scenarios."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness import paths
from harness.cli import resuming, values
from harness.cli.choosing import Scenarios, Variants
from harness.cli.group import alone
from harness.cli.options import Device, MaxTime, Only, Ops, Precision
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.model import Run
    from harness.scenario import Plan

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness run quick\n"
    "  harness run scenarios/prelu.yaml --dry-run\n"
    "  harness run prelu --only '*/float16/*' --variants tuned,compile\n"
    "  harness run mine.yaml --ops mine.py --output reports/mine\n"
    "  harness run --resume reports/mine\n"
    "\n\b\nWhat --json writes, as results.json of the report has it:\n"
    '  {"schema": 2, "header": machine, limits, scenarios, command, as in run.json,\n'
    '   "results": [one object a case, with the columns of results.csv],\n'
    '   "attachments": [what tools found about a case],\n'
    '   "notes": [sentences to know]}'
)


class RunCommand(TyperCommand):
    """`run`, two of whose options may stand without a value.

    --json takes a file or a stream as nvbench's does; without one it means stdout. --resume without a folder means that
    of --output.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed, after values were given to options without one, and a stored run's added."""

        def parsed(words: list[str]) -> dict[str, Any]:
            found: dict[str, Any] = self.make_parser(ctx).parse_args(list(words))[0]
            return found

        spelled = resuming.spelled(args)
        given = parsed(spelled)
        if given.get("resume") and not given.get("scenarios"):
            spelled = [*resuming.stored_arguments(Path(given["resume"]), parsed, given), *spelled]
        return super().parse_args(ctx, spelled)


@app.command("run", cls=RunCommand, epilog=EXAMPLES)
def command(
    scenarios: Scenarios = None,
    device: Device = None,
    only: Only = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAGS", help="Only scenarios that have one of these tags.")
    ] = None,
    variants: Variants = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cases, their bytes and their times at best; measure nothing.")
    ] = False,
    repeat: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Measure everything in N fresh processes.")
    ] = 1,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Go on with the run in FOLDER: its scenarios, its options, what is missing. Name plug-ins and files "
            "of scenarios again.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run. Default: a new one in reports/.")
    ] = None,
    ops: Ops = None,
    precision: Precision = None,
    max_time: MaxTime = None,
    fresh_ceilings: Annotated[
        bool,
        typer.Option("--fresh-ceilings", help="Measure the machine's limits anew, even if earlier ones are kept."),
    ] = False,
    json: Annotated[
        str | None, typer.Option(metavar="[WHERE]", help="Write the results as JSON to WHERE: stdout, or a .json file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only what fails, and where the report lies.")] = False,
) -> None:
    """Measure scenarios and leave a report.

    Options that take NAMES or TAGS may be repeated, or given with commas. Progress goes to standard error.
    """
    from harness import devices, scenario
    from harness.ops import Catalogue

    if resume is not None:
        output = resumed(resume, output)
    if not scenarios:
        raise UsageError("Missing argument SCENARIO", "'harness list scenarios' shows the bundled ones")
    if json and json not in resuming.STREAMS and not Path(json).parent.is_dir():
        raise UsageError(f"--json {json}: there is no folder {Path(json).parent}", "make it, or name another file")
    plugins = tuple(ops or ())
    catalogue = Catalogue(plugins)
    definitions = scenario.load(scenario.find(scenarios, catalogue), catalogue)
    kind = devices.choose(device, to_plan=dry_run)
    selection = scenario.Selection(
        device=kind,
        only=tuple(only or ()),
        tags=values.names(tag),
        variants=values.names(variants),
        dtypes=values.names(dtype),
        precision=precision,
        max_time=max_time,
    )
    plan = scenario.plan(definitions, catalogue, selection)
    if dry_run:
        from harness.cli import dry_run as preview

        preview.show(plan, catalogue, kind, repeat)
        return
    name = plan.scenarios[0].name if len(plan.scenarios) == 1 else "run"
    folder = output or paths.new_report(f"{name}-{kind}")
    if plan.left_out and not quiet:
        typer.echo(plan.left_out, err=True)
    request = {"name": name, "device": kind, "plugins": plugins, "repeat": repeat, "resume": resume is not None}
    again = resuming.told_command(folder, scenarios, plugins, output=output, resume=resume)
    _judge(measured(plan, again, folder=folder, fresh=fresh_ceilings, quiet=quiet, json=json, **request))


def measured(plan: Plan, again: str, *, folder: Path, quiet: bool, json: str | None, **request: Any) -> Run:
    """Carry out a plan, print its results, and write its report. again: the command that would go on after Ctrl-C.

    request: what `runner.run` takes besides.
    """
    from harness import units
    from harness.report.apart import Apart

    began = time.monotonic()
    report = Apart(folder, request["plugins"])
    run = _measure(plan, again, folder=folder, quiet=quiet, before_end=report.begin, **request)
    _print(run, json, quiet)
    _exit_if(report.write())
    if not quiet:
        took = timedelta(seconds=round(time.monotonic() - began))
        typer.echo(f"{units.plural(len(run.measurements), 'measurement')}, {took}", err=True)
    typer.echo(f"report: {folder}{os.sep}", err=json == "stdout")
    return run


def _judge(run: Run) -> None:
    """Raise typer.Exit if some case failed, or if none has a time: such a run is no success."""
    from harness import units
    from harness.model import FAILED

    if failed := sum(result.status in FAILED for result in run.results):
        typer.echo(f"{failed} of {units.plural(len(run.results), 'case')} failed", err=True)
    elif any(result.time is not None for result in run.results):
        return
    else:
        typer.echo("no case was timed", err=True)
    raise typer.Exit(Exit.CASES_FAILED)


def resumed(folder: str, output: Path | None) -> Path:
    """The folder of the run to go on with, by --resume or by --output."""
    if folder and output and Path(folder) != output:
        raise UsageError(f"--resume={folder} and --output={output} name two folders", "leave out --output")
    if not folder and output is None:
        raise UsageError("--resume needs a folder", "name the folder of a run: harness run --resume FOLDER")
    return Path(folder) if folder else output or Path()


def _measure(plan: Plan, again: str, *, folder: Path, quiet: bool, **request: Any) -> Run:
    """Carry out the plan. On Ctrl-C print the results so far and the command `again`, and end with 130."""
    from harness import runner, store
    from harness.cli.console import open_console
    from harness.cli.estimate import Estimate
    from harness.cli.progress import follow
    from harness.ops import known_cases

    estimate = Estimate.make(plan, request["device"], request["repeat"], request["fresh"])
    arguments = ("harness", *sys.argv[1:])
    try:
        with follow(open_console(err=True), estimate, quiet) as observer:
            return runner.run(plan, folder=folder, command=arguments, observer=observer, **request)
    except KeyboardInterrupt:
        if (folder / store.HEADER).exists():
            run = known_cases.load(folder)
            _print(run, None, quiet)
            _tell_how_to_resume(run, again)
        raise typer.Exit(130) from None


def _print(run: Run, json: str | None, quiet: bool) -> None:
    """Print the results as a table unless all is to be quiet, and as JSON to where it is wanted."""
    from harness.cli.console import open_console
    from harness.cli.messages import tell_losses
    from harness.report import terminal
    from harness.report.formats.json import text
    from harness.report.placing import into

    tell_losses(run)
    if not quiet:
        terminal.render(run, open_console(err=json == "stdout"))
    if json in resuming.STREAMS:
        typer.echo(text(run), err=json == "stderr")
    elif json:
        with into(Path(json).parent):
            Path(json).write_text(f"{text(run)}\n", encoding="utf-8")


def write_report(folder: Path, plugins: Sequence[Path]) -> None:
    """Write the report by `harness report` in another process: matplotlib would double the memory of this one.

    Raises typer.Exit with the exit code of that process if it fails.
    """
    from harness.report.apart import write_apart

    _exit_if(write_apart(folder, plugins))


def _exit_if(code: int) -> None:
    if code:
        raise typer.Exit(code)


def _tell_how_to_resume(run: Run, again: str) -> None:
    from harness import units

    done, total = len(run.measurements), run.header.jobs * run.header.repeat
    typer.echo(f"stopped after {done} of {units.plural(total, 'measurement')}; to continue:", err=True)
    typer.echo(f"  {again}", err=True)
