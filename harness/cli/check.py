"""`harness check`: whether results are right, without timing anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.choosing import Scenarios, Variants
from harness.cli.group import alone
from harness.cli.options import Device, Only, Ops
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.ops import Op
    from harness.scenario import Definition

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness check prelu softmax    small and awkward sizes of their ops, in 20 s\n"
    "  harness check prelu --all      every case of the scenario\n"
    "  harness check --ops mine.py    every op of the file\n"
    "  harness check quick --variants eager\n"
    "\n\b\nExit codes:\n"
    "  0 no result is wrong, and at least one is right\n"
    "  5 some case crashed, took too long or was wrong, or none could be checked"
)
_SECONDS = 20.0
"""How long small cases are checked, after each variant was checked once."""
_CHOSEN_SIZES = (
    "these sizes are chosen by 'harness check'. Where an op can't have some, it says so (unsupported= of a variant);\n"
    "  'harness check SCENARIO --all' takes the sizes of a scenario"
)


@app.command("check", epilog=EXAMPLES)
def command(
    scenarios: Scenarios = None,
    ops: Ops = None,
    only: Only = None,
    variants: Variants = None,
    device: Device = None,
    every: Annotated[
        bool, typer.Option("--all", help="Check every case of the scenarios, however long it takes; --only implies it.")
    ] = False,
) -> None:
    """Check results against the reference, and time nothing.

    The ops of the scenarios, or of the files of --ops, are checked at small and awkward sizes: odd ones, a single row,
    multiples of 8; each also with unaligned tensors and extreme values. Each variant is checked, and more cases for 20
    seconds. Each case is checked in a process that may crash, as in 'harness run'.
    """
    from harness import devices, runner, scenario
    from harness.cli import values
    from harness.cli.check_progress import Told
    from harness.cli.console import open_console
    from harness.cli.small_cases import ordered
    from harness.ops import Catalogue

    if not scenarios and not ops:
        raise UsageError("nothing to check", "name a scenario, or a file with an op: harness check --ops mine.py")
    plugins = tuple(ops or ())
    catalogue = Catalogue(plugins)
    kind = devices.choose(device)
    whole = bool(scenarios) and (every or bool(only))
    definitions = _definitions(scenarios or (), catalogue, plugins, whole=whole)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), variants=values.names(variants))
    plan = scenario.plan(definitions, catalogue, selection)
    if plan.left_out:
        typer.echo(plan.left_out, err=True)
    jobs, always = (plan.jobs, len(plan.jobs)) if whole else ordered(plan.jobs, plan.ops)
    try:
        with Told(open_console(), open_console(err=True), catalogue) as told:
            found = runner.check(jobs, kind, plugins, told, seconds=_SECONDS, always=always)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    left = len(jobs) - len(found)
    typer.echo(told.summary + (f"; {left} not checked in {_SECONDS:g} s" if left else ""))
    if told.crashed and not whole:
        typer.echo(_CHOSEN_SIZES, err=True)
    if not told.passed:
        raise typer.Exit(Exit.CASES_FAILED)


def _definitions(
    names: Sequence[str], catalogue: Mapping[str, Op], plugins: Sequence[Path], *, whole: bool
) -> tuple[Definition, ...]:
    """The scenarios, or small ones for their ops; a name may also be an op's. whole: as the scenarios are."""
    from harness import paths, scenario
    from harness.cli.small_cases import definition

    if not names:
        return _chosen(catalogue, plugins)
    alone = [name for name in names if name in catalogue and not (paths.data("scenarios") / f"{name}.yaml").is_file()]
    files = scenario.find([name for name in names if name not in alone])
    loaded = scenario.load(files, catalogue)
    if whole and not alone:
        return loaded
    if whole:
        raise UsageError(f"{alone[0]} is an op, no scenario", "leave out --all and --only")
    named = dict.fromkeys([*(each.op for each in loaded), *alone])
    return tuple(_small(definition(catalogue[op], [d for d in loaded if d.op == op]), catalogue[op]) for op in named)


def _small(found: Definition | None, op: Op) -> Definition:
    """The scenario of small sizes. Raises UsageError where there is none."""
    if found is None:
        raise UsageError(f"{op.file}: op '{op.name}' needs sizes of a scenario", "name one")
    return found


def _chosen(catalogue: Mapping[str, Op], plugins: Sequence[Path]) -> tuple[Definition, ...]:
    """A scenario for each op that has variants and comes from one of the files. Raises UsageError if there is none."""
    from harness.cli.small_cases import definition

    files = {plugin.resolve() for plugin in plugins}
    own = [op for op in map(partial(_of_files, files), catalogue.values()) if op.variants]
    if not own:
        names = ", ".join(map(str, plugins))
        raise UsageError(f"{names}: no op has a variant, so there is nothing to check", "add one with @OP.variant(...)")
    return tuple(_small(definition(op), op) for op in own)


def _of_files(files: Collection[Path], op: Op) -> Op:
    """The op with the variants that the files declare, and its first one, which they are compared with."""
    if op.file in files:
        return op
    added = {name: variant for name, variant in op.variants.items() if variant.file in files}
    return replace(op, variants=added)
