"""`harness list`: ops, scenarios, report formats and devices."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.cli import completion
from harness.cli.columns import Row, aligned, filled
from harness.cli.group import QuickGroup
from harness.cli.options import Ops
from harness.units import plural


class ListGroup(QuickGroup):
    """The group of listings. `harness list --ops FILE` lists everything: an option of its own would load pydantic."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments parsed, with the command that options without one are of."""
        return super().parse_args(ctx, ["everything", *args] if args and args[0].startswith("--ops") else args)


# Subcommands, not an argument: typer would load pydantic to convert it.
app = typer.Typer(
    cls=ListGroup,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List ops, scenarios, report formats and devices.",
    epilog="\b\nExamples:\n  harness list\n  harness list --ops mine.py\n  harness list ops\n"
    "  harness list op softmax\n  harness list op softmax --ops mine.py\n  harness list scenario quick",
)


@app.callback()
def nothing_named(ctx: typer.Context) -> None:
    """List the names of everything, unless one kind is named."""
    # Loading modules makes no garbage, and to search for it would take a twentieth of the time.
    gc.disable()
    if ctx.invoked_subcommand is None:
        everything()


@app.command()
def everything(ops: Ops = None) -> None:
    """All of this, as without a command."""
    from harness import discover

    # By the names of files, which is a third of the time: to load all ops and to read all scenarios takes the rest.
    kinds = (
        (
            "ops",
            "more: harness list ops, harness list op NAME",
            _names(tuple(ops)) if ops else completion.installed_ops(),
        ),
        ("scenarios", "more: harness list scenarios, harness list scenario NAME", completion.bundled_scenarios()),
        ("report formats", "more: harness list formats", discover.names("harness.report.formats")),
        ("kinds of device", "more: harness list devices, harness env", discover.names("harness.devices")),
    )
    lines: list[str] = []
    for kind, more, names in kinds:
        lines += [f"{len(names)} {kind} ({more})", *filled(names)]
    typer.echo("\n".join(lines))


@app.command()
def ops(ops: Ops = None) -> None:
    """Ops, and what each computes."""
    _print(_ops(tuple(ops or ())))


@app.command()
def scenarios() -> None:
    """Scenarios that 'harness run' knows by name."""
    _print(_scenarios())


@app.command()
def formats() -> None:
    """Report formats."""
    _print(_formats())


@app.command()
def devices() -> None:
    """Kinds of device; 'harness env' tells whether they work here."""
    _print(_devices())


@app.command()
def op(name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.ops)], ops: Ops = None) -> None:
    """One op: its sizes, choices, tensors and variants."""
    from harness.cli import details

    details.op(name, tuple(ops or ()))


@app.command()
def scenario(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.scenarios)], ops: Ops = None
) -> None:
    """One scenario, bundled or a file: what it shows and measures."""
    from harness.cli import details

    details.scenarios(name, tuple(ops or ()))


def _print(rows: Iterator[Row]) -> None:
    # All lines in one call, since every call of echo flushes.
    typer.echo("\n".join(aligned(list(rows))))


def _names(plugins: Sequence[Path]) -> list[str]:
    from harness.ops import Catalogue

    return list(Catalogue(plugins))


def _ops(plugins: Sequence[Path] = ()) -> Iterator[Row]:
    from harness.ops import Catalogue

    for op in Catalogue(plugins).values():
        plans = ", plans to tune" if any(variant.tuning for variant in op.variants.values()) else ""
        yield op.name, f"{op.summary} ({plural(len(op.variants), 'variant')}{plans})"


def _scenarios() -> Iterator[Row]:
    from harness import scenario

    for entry in scenario.overview():
        yield entry.name, f"{entry.title} ({entry.op}; {', '.join(entry.tags) or 'no tags'})"


def _formats() -> Iterator[Row]:
    from harness import report

    for name, module in report.every_format().items():
        yield name, module.SUMMARY


def _devices() -> Iterator[Row]:
    from harness.devices import kinds

    # Whether they work here takes longer to find out; 'harness env' says so.
    for name, device in kinds().items():
        yield name, (type(device).__doc__ or "").partition("\n")[0]
