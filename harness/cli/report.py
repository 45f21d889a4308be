"""`harness report`: the report of runs that are stored, written again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import values
from harness.cli.group import alone
from harness.cli.options import Ops

if TYPE_CHECKING:
    from harness.model import Run
    from harness.ops import Op

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness report reports/h200/prelu\n"
    "  harness report reports/* --format csv,markdown\n"
    "  harness report reports/mine --format png --variants eager,tuned"
)


@app.command("report", epilog=EXAMPLES)
def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="NAMES", help="Formats to write, as 'harness list formats' names them."),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMES", help="Only pictures, with these variants only, into RUN/slides."),
    ] = None,
    ops: Ops = None,
) -> None:
    """Write the reports of stored runs again. This needs no GPU.

    The files go into the folder of each run; a link there is refused, not written through. A report says which of its
    results were measured with older code. Give --ops to check the results of plug-in ops too.
    """
    from harness import report
    from harness.cli.messages import tell_losses
    from harness.ops import Catalogue, known_cases
    from harness.report.placing import placed

    catalogue = Catalogue(tuple(ops or ()))
    loaded = [known_cases.load(folder) for folder in runs]
    if chosen := values.names(variants):
        for folder, run in zip(runs, loaded, strict=True):
            draw = partial(report.write_slides, run, variants=chosen, formats=values.names(formats) or None)
            for path in placed(folder, draw):
                typer.echo(path)
        return
    for folder, run, notes in zip(runs, loaded, stale(loaded, catalogue), strict=True):
        tell_losses(run)
        for path in placed(folder, partial(report.write, run, formats=values.names(formats) or None, notes=notes)):
            typer.echo(path)


def stale(runs: Sequence[Run], catalogue: Mapping[str, Op]) -> list[list[str]]:
    """For each run, sentences about results that were measured with other code than the present one."""
    from harness import report
    from harness.ops.codes import codes

    named = {m.case.op for run in runs for m in run.measurements}
    measured = [op for name, op in catalogue.items() if name in named]
    current = {kind: codes(measured, kind) for kind in {run.header.machine.kind for run in runs}}
    return [report.stale(run, current[run.header.machine.kind]) for run in runs]
