"""`harness run`: measure scenarios."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness.cli import values
from harness.cli.options import Device, MaxTime, Only, Ops, Precision
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.model import Run
    from harness.scenario import Plan

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness run quick\n"
    "  harness run scenarios/prelu.yaml --dry-run\n"
    "  harness run prelu --only 'prelu/*/float16/*' --variants tuned,compile --repeat 5\n"
    "  harness run mine.yaml --ops mine.py --output reports/mine\n"
    "  harness run prelu --output reports/mine --resume\n"
    "\n\b\nWhat --json writes, as results.json of the report has it:\n"
    '  {"schema": 2, "header": machine, limits, scenarios and command, as in run.json,\n'
    '   "results": [one object a case, with the columns of results.csv],\n'
    '   "attachments": [what tools found about a case], "notes": [sentences to know]}'
)
_STREAMS = ("stdout", "stderr")


class RunCommand(TyperCommand):
    """`run`, whose --json takes a file or a stream as nvbench's does; without one it means stdout."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed, after `stdout` was added to a --json without a value."""
        spelled = []
        for word, following in pairwise([*args, ""]):
            lone = word == "--json" and following not in _STREAMS and not following.endswith(".json")
            spelled.append("--json=stdout" if lone else word)
        return super().parse_args(ctx, spelled)


def command(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO", help="Scenario files, folders of them, or bundled names.")
    ],
    device: Device = None,
    only: Only = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAGS", help="Only scenarios that have one of these tags.")
    ] = None,
    variants: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these variants.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cases, their bytes and their times at best; measure nothing.")
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Measure everything in N fresh processes.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --output; what it holds isn't measured again.")
    ] = False,
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
) -> None:
    """Measure scenarios and leave a report.

    Options that take NAMES or TAGS may be repeated, or given with commas. Progress goes to standard error.
    """
    from harness import devices, scenario
    from harness.model import FAILED
    from harness.ops import Catalogue

    if resume and output is None:
        raise UsageError("--resume needs --output", "name the folder of the run to continue")
    if json and json not in _STREAMS and not Path(json).parent.is_dir():
        raise UsageError(f"--json {json}: there is no folder {Path(json).parent}", "make it, or name another file")
    plugins = tuple(ops or ())
    catalogue = Catalogue(plugins)
    definitions = scenario.load(scenario.find(scenarios), catalogue)
    kind = devices.choose(device)
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
    folder = output or Path("reports") / f"{name}-{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    request = {"name": name, "device": kind, "plugins": plugins, "repeat": repeat, "resume": resume}
    run = _measure(plan, folder=folder, fresh=fresh_ceilings, **request)
    _print(run, json)
    _write_report(folder, plugins)
    typer.echo(f"report: {folder}{os.sep}", err=json == "stdout")
    if failed := sum(result.status in FAILED for result in run.results):
        typer.echo(f"{failed} of {len(run.results)} cases failed", err=True)
        raise typer.Exit(Exit.CASES_FAILED)


def _measure(plan: Plan, *, folder: Path, **request: Any) -> Run:
    """Carry out the plan. On Ctrl-C print the results so far and how to continue, and end with 130."""
    from harness import runner, store
    from harness.cli.console import open_console
    from harness.cli.progress import follow

    arguments = ("harness", *sys.argv[1:])
    try:
        with follow(open_console(err=True)) as observer:
            return runner.run(plan, folder=folder, command=arguments, observer=observer, **request)
    except KeyboardInterrupt:
        if (folder / store.HEADER).exists():
            run = store.load(folder)
            _print(run, None)
            _tell_how_to_resume(run, folder, arguments)
        raise typer.Exit(130) from None


def _print(run: Run, json: str | None) -> None:
    """Print the results as a table, and as JSON to where it is wanted."""
    from harness.cli.console import open_console
    from harness.cli.messages import tell_losses
    from harness.report import terminal
    from harness.report.formats.json import text

    tell_losses(run)
    terminal.render(run, open_console(err=json == "stdout"))
    if json in _STREAMS:
        typer.echo(text(run), err=json == "stderr")
    elif json:
        Path(json).write_text(f"{text(run)}\n", encoding="utf-8")


def _write_report(folder: Path, plugins: Sequence[Path]) -> None:
    """Write the report by `harness report` in another process: matplotlib would double the memory of this one.

    Raises typer.Exit with the exit code of that process if it fails.
    """
    import subprocess

    from harness.processes import python

    known = [argument for plugin in plugins for argument in ("--ops", str(plugin))]
    command = python.command("harness", ["report", str(folder), *known])
    written = subprocess.run(command, stdout=subprocess.DEVNULL, env=python.environment(), check=False)
    if written.returncode:
        raise typer.Exit(written.returncode)


def _tell_how_to_resume(run: Run, folder: Path, arguments: Sequence[str]) -> None:
    import shlex

    done, total = len(run.measurements), run.header.jobs * run.header.repeat
    given = {argument.partition("=")[0] for argument in arguments}
    missing = [option for option in (f"--output={folder}", "--resume") if option.partition("=")[0] not in given]
    typer.echo(f"stopped after {done} of {total} measurements; to continue:", err=True)
    typer.echo(f"  {shlex.join([*arguments, *missing])}", err=True)
