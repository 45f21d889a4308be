"""`harness check`: whether results are right, without timing anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness.cli.choosing import Scenarios, Variants
from harness.cli.options import Device, Only, Ops
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.ops import Op
    from harness.scenario import Definition

EXAMPLES = (
    "\b\nExamples:\n"
    "  harness check --ops mine.py           every op of the file, at small sizes\n"
    "  harness check mine.yaml --ops mine.py\n"
    "  harness check quick --variants eager\n"
    "\n\b\nExit codes:\n"
    "  0 no result is wrong, and at least one is right\n"
    "  5 some case crashed, took too long or was wrong, or none could be checked"
)
_ALONE = 4096  # elements of an op with one symbol
_SEVERAL = 8  # the sizes of several symbols are multiples of it


def command(
    scenarios: Scenarios = None,
    ops: Ops = None,
    only: Only = None,
    variants: Variants = None,
    device: Device = None,
) -> None:
    """Check results against the reference, and time nothing.

    Without SCENARIO, the ops in the files of --ops are checked at small sizes that are chosen for them. Each case is
    checked in a process that may crash, as in 'harness run'.
    """
    from harness import devices, runner, scenario
    from harness.cli import values
    from harness.cli.check_progress import Told
    from harness.cli.console import open_console
    from harness.ops import Catalogue

    if not scenarios and not ops:
        raise UsageError("nothing to check", "name a scenario, or a file with an op: harness check --ops mine.py")
    plugins = tuple(ops or ())
    catalogue = Catalogue(plugins)
    kind = devices.choose(device)
    definitions = scenario.load(scenario.find(scenarios), catalogue) if scenarios else _chosen(catalogue, plugins)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), variants=values.names(variants))
    plan = scenario.plan(definitions, catalogue, selection)
    if plan.left_out:
        typer.echo(plan.left_out, err=True)
    try:
        with Told(open_console(), open_console(err=True), catalogue) as told:
            runner.check(plan.jobs, kind, plugins, told)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    typer.echo(told.summary)
    if not told.passed:
        raise typer.Exit(Exit.CASES_FAILED)


def _chosen(catalogue: Mapping[str, Op], plugins: Sequence[Path]) -> tuple[Definition, ...]:
    """A scenario for each op that has variants and comes from one of the files. Raises UsageError if there is none."""
    files = {plugin.resolve() for plugin in plugins}
    own = [op for op in map(partial(_of_files, files), catalogue.values()) if op.variants]
    if not own:
        names = ", ".join(map(str, plugins))
        raise UsageError(f"{names}: no op has a variant, so there is nothing to check", "add one with @OP.variant(...)")
    return tuple(map(_definition, own))


def _of_files(files: Collection[Path], op: Op) -> Op:
    """The op with the variants that the files declare, and its first one, which they are compared with."""
    if op.file in files:
        return op
    added = {name: variant for name, variant in op.variants.items() if variant.file in files}
    return replace(op, variants=added)


def _definition(op: Op) -> Definition:
    """A scenario of one small shape, with every dtype and variant of the op."""
    from harness.expressions import ExpressionError, evaluate
    from harness.scenario import Definition, Setting

    sizes: dict[str, int] = {}
    free = [symbol for symbol in op.symbols if symbol not in op.defaults]
    # Different sizes, so that a result whose dimensions are mixed up is found.
    for number, symbol in enumerate(free):
        sizes[symbol] = _ALONE if len(free) == 1 else _SEVERAL * (number + 2)
    try:
        for symbol, text in op.defaults.items():
            sizes[symbol] = evaluate(text, sizes)
    except ExpressionError as error:
        raise UsageError(f"{op.file}: op '{op.name}' needs sizes of a scenario: {error}", "name one") from error
    shape = tuple((symbol, sizes[symbol]) for symbol in op.symbols)
    choices = tuple((name, choice.usual) for name, choice in op.choices.items())
    return Definition(
        name=op.name,
        file=op.file or Path(),
        title=op.summary,
        op=op.name,
        settings=(Setting(shape, choices),),
        dtypes=op.dtypes,
        variants=tuple(op.variants),
        baseline=next(iter(op.variants)),
    )
