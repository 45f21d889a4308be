"""`harness ladder`: what makes a user's own training step faster, rung by rung."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from harness import paths
from harness.cli import resuming, values
from harness.cli import run as running
from harness.cli.columns import aligned
from harness.cli.group import alone
from harness.cli.options import Device, MaxTime, Only, Ops, Precision
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.ladder import Laddered
    from harness.model import Case, Run
    from harness.ops import Op
    from harness.scenario import Plan

app = alone()
SHORT = "Say what makes your own training step faster, rung by rung."
_BATCH = 32
"""Items of a batch of a library's model, unless told."""
_STEPS = 50
"""Steps of a training from one of several seeds, unless told."""
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness ladder step.py   a file with model(), batch(), loss(model, *batch)\n"
    "  harness ladder step.py --dtype float16 --variants float32,amp,compile\n"
    "  harness ladder step.py --repeat 3 --output reports/mine\n"
    "  harness ladder step.py --seeds 5    losses, within the seeds' spread or not\n"
    "  harness ladder step.py --output reports/mine --resume\n"
    "  harness ladder step.py --world 2    on one GPU, and on two of this host\n"
    "  harness ladder step.py --world 4 --seeds 5 --ranks 0,3\n"
    "  harness ladder --model timm:vit_base_patch16_224 --batch 64\n"
    "  harness ladder --model transformers:bert\n"
    "\n\b\nExit codes:\n"
    "  0 the first rung has a time, whatever became of others\n"
    "  2 the step or the request can't be carried out\n"
    "  4 the machine can't give valid numbers\n"
    "  5 the first rung has no time: nothing can be compared"
)


class LadderCommand(TyperCommand):
    """`ladder`, whose --resume may stand without a folder: then it is the folder of --output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed."""
        return super().parse_args(ctx, resuming.spelled(args))


@app.command("ladder", cls=LadderCommand, epilog=EXAMPLES, short_help=SHORT)
def command(
    step: Annotated[
        Path | None, typer.Argument(metavar="STEP.PY", help="File with the step.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="LIBRARY:NAME", help="timm:NAME or transformers:NAME, in place of a file.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Items of a batch on each device, with --model; 32 unless told."),
    ] = None,
    world: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Devices of this host that train together, as 2 or 2,4; and one.")
    ] = "1",
    device: Device = None,
    only: Only = None,
    variants: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these rungs.")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Type of halves, bfloat16 unless told; with both, two ladders."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the rungs; measure nothing.")] = False,
    repeat: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Measure in N fresh processes, each in another order.")
    ] = 1,
    resume: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Go on with the run in FOLDER: name the step again.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run. Default: a new one in reports/.")
    ] = None,
    ops: Ops = None,
    precision: Precision = None,
    max_time: MaxTime = None,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Record each rung's kernels after the times.")
    ] = True,
    ranks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Of several devices, those whose kernels are recorded, as 0,4-7.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=3, max=100, metavar="N", help="Then train each rung from N seeds, and compare the losses."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=10, metavar="N", help="Steps of such a training; 50 unless told.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only what fails, and where the report lies.")] = False,
) -> None:
    """Say what makes a training step of your own faster, rung by rung, and give the code of the fastest rung.

    The file gives functions: model(), batch(), and loss(model, *batch) or step(model, optimizer, *batch); it may give
    optimizer(parameters). Each rung's losses and gradients are checked against float32. A rung that fails costs only
    itself. The file's code runs in processes of its own. With --world 2 each rung is measured on one device and on two,
    each with a process and a batch of its own.
    """
    from harness import devices, ladder, store
    from harness.cli import dry_run as preview
    from harness.scenario import Selection

    _refuse(step, model, batch, seeds, steps)
    if resume is not None:
        output = running.resumed(resume, output)
    kind = devices.choose(device)
    source = str(step or model)
    worlds = _worlds(world, kind, dry_run=dry_run)
    recorded = _recorded(ranks, worlds, profile=profile)
    found = ladder.laddered(source, kind, batch or _BATCH, worlds)
    folder = output or paths.new_report(f"{found.name}-{kind}")
    selection = Selection(
        device=kind,
        only=tuple(only or ()),
        variants=values.names(variants),
        dtypes=values.names(dtype) or ("bfloat16",),
        precision=precision,
        max_time=max_time,
    )
    asked = (seeds, steps or _STEPS) if seeds else None
    if not quiet:
        typer.echo(f"harness.nn.patch: {found.said}", err=True)
    for text in found.warned:
        typer.echo(f"warning: {text}", err=True)
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="ladder-") as home:
            plan, catalogue = found.planned((_plugin(found, Path(home)), *(ops or ())), selection)
        _show(plan, catalogue)
        possible = tuple(job for job in plan.jobs if not _why_not(job.case, catalogue))
        preview.show(replace(plan, jobs=possible), catalogue, kind, repeat)
        if asked:
            typer.echo(f"then {asked[0]} trainings of {asked[1]} steps for each rung that has a time")
        return
    if (folder / store.HEADER).exists() and resume is None:
        raise UsageError(f"{folder}: holds a run already", "go on with it by --resume, or choose another --output")
    plugin = _plugin(found, folder)
    plugins = (plugin, *(ops or ()))  # which may add rungs to its op
    plan, catalogue = found.planned(plugins, selection)
    added = [] if resume is not None else [*([] if output else [f"--output={folder}"]), "--resume"]
    again = shlex.join(["harness", *sys.argv[1:], *added])
    request = {"name": found.name, "device": kind, "plugins": plugins, "repeat": repeat, "resume": resume is not None}
    run = running.measured(plan, again, folder=folder, fresh=False, quiet=quiet, json=None, **request)
    if profile:
        _under("torch", folder, plugins, "the kernels of some rungs weren't recorded", *recorded)
    if asked:
        run = _train(run, folder, plugins, asked, quiet=quiet)
    _end(run, folder, plugin, quiet=quiet)


def _refuse(step: Path | None, model: str | None, batch: int | None, seeds: int | None, steps: int | None) -> None:
    """Raise UsageError for arguments that name no step, or two, and for options that need another one."""
    if (step is None) == (model is None):
        raise UsageError(
            "name either a file or --model", "harness ladder step.py, or --model timm:vit_base_patch16_224"
        )
    if step is not None and not step.is_file():
        raise UsageError(f"{step}: there is no such file", "name a file that gives model, batch and loss")
    if step is not None and batch is not None:
        raise UsageError("--batch is for --model", f"let batch() in {step} give a batch of {batch}")
    if steps is not None and seeds is None:
        raise UsageError("--steps is for trainings from several seeds", "add --seeds 5, or leave --steps out")


def _worlds(text: str, kind: str, *, dry_run: bool) -> tuple[int, ...]:
    """One device, which the others are compared with, and the numbers of devices that are asked for.

    Raises UsageError for what is no such number, and for more devices than there are, except in a dry run.
    """
    from harness.processes.supervisor import too_few

    asked = values.numbers(text)
    if 0 in asked or not asked:
        raise UsageError(f"--world {text}: names no number of devices", "write --world 2, or --world 2,4")
    if not dry_run and (why := too_few(kind, max(asked))):
        advice = "name fewer, or try it on processors: --device cpu has a process in place of each GPU"
        raise UsageError(f"--world {text}: {why}", advice)
    return tuple(sorted({1, *asked}))


def _recorded(ranks: str | None, worlds: Sequence[int], *, profile: bool) -> list[str]:
    """The option of `harness profile torch` for the ranks that are recorded.

    Raises UsageError where none of them is there, and where nothing is recorded.
    """
    if ranks is None:
        return []
    numbers, most = values.numbers(ranks), [world for world in worlds if world > 1]
    if not most or not profile:
        raise UsageError("--ranks says which of several devices are recorded", "add --world 2, or leave --ranks out")
    if not numbers or numbers[0] >= most[0]:
        raise UsageError(f"--ranks {ranks}: {most[0]} devices have the ranks 0 to {most[0] - 1}", "name one of these")
    return [f"--ranks={ranks}"]


def _plugin(found: Laddered, folder: Path) -> Path:
    """The plug-in of the step, written into a folder."""
    from harness import ladder

    folder.mkdir(parents=True, exist_ok=True)
    plugin = folder / ladder.FILE
    plugin.write_text(found.text, encoding="utf-8")
    return plugin


def _show(plan: Plan, ops: Mapping[str, Op]) -> None:
    """Print what each rung changes, or why it is none here."""
    changes: dict[str, str] = {}
    cases: dict[tuple[str, str], list[Case]] = {}
    for case in (job.case for job in plan.jobs):
        cases.setdefault((case.op, case.variant), []).append(case)
    for (op, name), every in cases.items():
        variant = ops[op].variants[name]
        reasons = {case.world: _why_not(case, ops) for case in every}
        refused = {world: reason for world, reason in reasons.items() if reason}
        if len(refused) == len(reasons):
            changes[name] = f"not here: {next(iter(refused.values()))}"
        else:
            told = (f"; not on {world} devices: {reason}" for world, reason in refused.items())
            changes[name] = variant.summary + "".join(told)
    typer.echo("\n".join(aligned([("rung", "what it changes"), *changes.items()], indent=0)))


def _why_not(case: Case, ops: Mapping[str, Op]) -> str | None:
    """Why a rung is none here; None if it is one."""
    unsupported = ops[case.op].variants[case.variant].unsupported
    return unsupported(case) if unsupported else None


def _train(run: Run, folder: Path, plugins: Sequence[Path], asked: tuple[int, int], *, quiet: bool) -> Run:
    """Let `harness profile losses` train each rung from several seeds. Gives the run with what came of that.

    asked: how many seeds, and steps of each training.
    """
    from harness import units
    from harness.ops import known_cases

    seeds, steps = asked
    times = {result.case.id: result.time for result in run.results if result.time}
    if not quiet:
        took = units.seconds(seeds * steps * sum(times.values()), 2)
        count = seeds * len(times)
        told = f"trainings of {steps} steps from {seeds} seeds: {count} of them, steps of {took} in all"
        typer.echo(f"{told}, and the time to build and compile each model; without --seeds they are left out", err=True)
    _under("losses", folder, plugins, "some trainings failed", f"--seeds={seeds}", f"--steps={steps}")
    return known_cases.load(folder)


def _under(tool: str, folder: Path, plugins: Sequence[Path], failed: str, *options: str) -> None:
    """Run the cases of a run under a tool. If that fails, a message says so, and nothing else is lost."""
    from harness.processes import python

    arguments = ["profile", tool, "--run", str(folder), *options, *(f"--ops={plugin}" for plugin in plugins)]
    process = subprocess.run(
        python.command("harness", arguments), stdout=subprocess.DEVNULL, env=python.environment(), check=False
    )
    if process.returncode:
        typer.echo(f"{failed}; to try again: harness {shlex.join(arguments)}", err=True)


def _end(run: Run, folder: Path, plugin: Path, *, quiet: bool) -> None:
    """Say what to use, and raise typer.Exit if the first rung has no time."""
    from harness.report import sections
    from harness.report.frame import by_scenario

    found = [note.text for _, lines in by_scenario(run) for note in sections.verdicts(lines)]
    for text in found:
        typer.echo(text)
    if not quiet:
        typer.echo(f"why a rung takes so long: harness explain '*' --run {folder}", err=True)
        typer.echo(f"what its kernels do: harness profile nsys --run {folder} --ops {plugin}", err=True)
    baseline = {scenario.baseline for scenario in run.header.scenarios}
    if not any(result.time is not None for result in run.results if result.case.variant in baseline):
        typer.echo("the first rung has no time, so nothing can be compared", err=True)
        raise typer.Exit(Exit.CASES_FAILED)
