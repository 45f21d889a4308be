"""`harness report`: the report of runs that are stored, written again."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import values
from harness.cli.options import Ops
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.model import Run
    from harness.ops.codes import Codes

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

    The files go into the folder of each run; a link there is refused, not written through. A report says which of its
    results were measured with older code. Give --ops to check the results of plug-in ops too.
    """
    from harness import report, store
    from harness.cli.messages import tell_losses

    loaded = [(folder, store.load(folder)) for folder in runs]
    current = _codes({m.case.op for _, run in loaded for m in run.measurements}, tuple(ops or ()))
    for folder, run in loaded:
        tell_losses(run)
        for path in _write(run, folder, values.names(formats) or None, report.stale(run, current)):
            typer.echo(path)


def _write(run: Run, folder: Path, formats: Sequence[str] | None, notes: Sequence[str]) -> list[Path]:
    """Write a run's report into a folder of its own first, then move the files into the run's folder.

    So the report is there whole or not at all, and nothing is written through a link, which may point anywhere where
    the run is somebody else's. Raises UsageError for a link, as `report.write` for the rest.
    """
    from harness import report

    with report.into(folder), TemporaryDirectory(prefix=".report-", dir=folder) as draft:
        made = [path.relative_to(draft) for path in report.write(run, Path(draft), formats, notes)]
        for link in sorted({folder / part for file in made for part in (file, *file.parents) if part.name}):
            if link.is_symlink():
                where = f"{link} is a link to {os.readlink(link)}"  # noqa: PTH115 - as it is written there
                raise UsageError(f"{where}, and a report isn't written through links", "remove the link")
        for file in made:
            (folder / file).parent.mkdir(exist_ok=True)
            (Path(draft) / file).replace(folder / file)
    return [folder / file for file in made]


def _codes(ops: Collection[str], plugins: Sequence[Path]) -> Codes:
    """The code of each variant of these ops that exists here."""
    from harness.ops import Catalogue
    from harness.ops.codes import codes

    return codes(op for name, op in Catalogue(plugins).items() if name in ops)
