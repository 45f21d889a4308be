"""`harness report`: the report of runs that are stored, written again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import values
from harness.cli.options import Ops

EXAMPLES = "\b\nExamples:\n  harness report reports/h200/prelu\n  harness report reports/* --format csv,markdown"


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="NAMES", help="Formats to write, as 'harness list formats' names them."),
    ] = None,
    ops: Ops = None,
) -> None:
    """Write the reports of stored runs again. This needs no GPU.

    The files go into the folder of each run. A report says which of its results were measured with older code. Give
    --ops to check the results of plug-in ops too.
    """
    from harness import report, store
    from harness.cli.messages import tell_losses

    loaded = [(folder, store.load(folder)) for folder in runs]
    current = _digests({m.case.op for _, run in loaded for m in run.measurements}, tuple(ops or ()))
    for folder, run in loaded:
        tell_losses(run)
        for path in report.write(run, folder, values.names(formats) or None, report.stale(run, current)):
            typer.echo(path)


def _digests(ops: Collection[str], plugins: Sequence[Path]) -> dict[str, str]:
    """The hash over the code of each of these ops that exists here, by name."""
    from harness import source
    from harness.ops import Catalogue

    there = {name: op.file for name, op in Catalogue(plugins).items() if name in ops}
    return {name: source.code(name, file).digest for name, file in there.items() if file}
