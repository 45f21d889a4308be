"""`harness gate merge`: the verdicts of several machines as one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.group import alone

if TYPE_CHECKING:
    from harness.gate.joining import Joined

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness gate merge h100/gate.json h200/gate.json\n"
    "  harness gate merge reports/gate-* --output reports/gate"
)


@app.command("merge", epilog=EXAMPLES)
def command(
    verdicts: Annotated[
        list[Path], typer.Argument(metavar="VERDICT", help="gate.json files, or folders with them, two or more.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the joint verdict. Default: none is written.")
    ] = None,
) -> None:
    """Join verdicts on one code into one verdict, one table and one exit code.

    The exit code is the gravest: 1 before 70, 2, 4, 3 and 0. So a failure on one machine fails, and a machine that
    gave no verdict isn't passed over. Verdicts on different codes or bases are refused.
    """
    from harness.gate import joining

    raise typer.Exit(finish(joining.merge(verdicts), output))


def finish(made: Joined, folder: Path | None) -> int:
    """Print several verdicts, write them into the folder, if one is named, and where GitHub looks for them.

    Returns the exit code.
    """
    from harness.cli.console import open_console
    from harness.report.gate import joined

    joined.draw(made, open_console())
    for path in joined.write(made, folder) if folder else ():
        typer.echo(path, err=True)
    joined.publish(made, os.environ)
    return int(made.exit)
