"""`harness compare`: runs beside a baseline, case by case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import values
from harness.cli.group import alone
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.differences import Compared

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness compare reports/before reports/after\n"
    "  harness compare reports/before @last --fail-above 2%\n"
    "  harness compare reports/a reports/b reports/c --baseline b --format csv\n"
    "\n\b\nExit codes:\n"
    "  0 fine\n"
    "  1 a case is slower by more than --fail-above\n"
    "  5 with --fail-above, no case has a time in both runs"
)

_NOTHING = "no case has a time in both runs"


@app.command("compare", epilog=EXAMPLES)
def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="REF RUN...", help="Folders of runs. @last is the run in reports/ that began last."),
    ],
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The run to compare with: a folder, or its last part. Default: the first."),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            parser=values.share,
            metavar="SHARE",
            help="End with exit code 1 if a case takes longer by more than this, e.g. 2%, beyond its noise.",
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="Write json, csv or md in place of the table.")
    ] = None,
) -> None:
    """Compare runs with the first of them, case by case.

    Shown are both times and their ratio, REF over RUN: above 1, RUN is faster. A '~' stands where the 95% intervals of
    the two times overlap: the difference is no more than noise. The last row has the geometric mean of the ratios.
    """
    from harness import store
    from harness.cli.console import open_console
    from harness.cli.messages import tell_losses
    from harness.differences import compare_all
    from harness.errors import nearest
    from harness.ops import known_cases
    from harness.report import comparison, terminal
    from harness.report.tree import Note

    if len(runs) < 2:
        raise UsageError(f"only {runs[0]} is given", "name two runs or more: harness compare REF RUN")
    if form and form not in comparison.FORMATS:
        raise UsageError(f"--format: no format is named '{form}'", nearest(form, comparison.FORMATS))
    places = store.by_name(runs)
    loaded = {name: known_cases.load(place) for name, place in places.items()}
    tell_losses(*loaded.values())
    made = compare_all(_chosen(baseline, places), loaded)
    if form:
        typer.echo(comparison.FORMATS[form](made))
    else:
        page = comparison.page(made)
        if _has_nothing_in_common(made):  # a table of what is missing would hide that
            page = replace(page, blocks=(Note(_NOTHING, "warning"), *page.blocks[1:]))
        terminal.show(page, open_console())
    if fail_above is not None:
        _judge(made, fail_above)


def _has_nothing_in_common(made: Compared) -> bool:
    return all(each.ratio is None for found in made.differences for each in found)


def _chosen(baseline: str | None, places: Mapping[str, Path]) -> str:
    """The name of the run to compare with. Raises UsageError if none of the runs has the name."""
    from harness import store
    from harness.errors import nearest

    if baseline is None:
        return next(iter(places))
    named = [name for name, place in places.items() if baseline in (name, place.name) or place == store.place(baseline)]
    if len(named) != 1:
        found = "several runs are" if named else "no run is"
        raise UsageError(f"--baseline: {found} named '{baseline}'", nearest(baseline, places))
    return named[0]


def _judge(made: Compared, share: float) -> None:
    """Raise typer.Exit if a case is slower by more than the share, or if there is nothing to judge by."""
    from harness import units

    if _has_nothing_in_common(made):
        typer.echo(_NOTHING, err=True)
        raise typer.Exit(Exit.CASES_FAILED)
    if slower := made.slower(share):
        name, worst = min(slower, key=lambda found: found[1].ratio or 0.0)
        cases = units.plural(len(slower), "case")
        told = f"{cases} slower by more than {units.percent(share)}; the worst: {worst.case.id} in {name}"
        typer.echo(told, err=True)
        raise typer.Exit(Exit.GATE_FAILED)
