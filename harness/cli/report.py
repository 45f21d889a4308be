"""`harness report`: the report of runs that are stored, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import values

EXAMPLES = "\b\nExamples:\n  harness report reports/h200/prelu\n  harness report reports/* --format csv,markdown"


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="NAMES", help="Formats to write, as 'harness list formats' names them."),
    ] = None,
) -> None:
    """Write the reports of stored runs again; needs no GPU.

    The files go into the folder of each run.
    """
    from harness import report, store
    from harness.cli.messages import tell_losses

    loaded = [(folder, store.load(folder)) for folder in runs]
    for folder, run in loaded:
        tell_losses(run)
        for path in report.write(run, folder, values.names(formats) or None):
            typer.echo(path)
