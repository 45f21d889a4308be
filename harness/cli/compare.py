"""`harness compare`: two runs, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = "\b\nExample:\n  harness compare reports/before reports/after"


def command(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="Folder of the run to compare with.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the run to judge.")],
) -> None:
    """Compare two runs, case by case.

    Shown are both times and their ratio, REF over RUN: above 1, RUN is faster. A '~' stands where the 95% intervals of
    the two times overlap: the difference is no more than noise.
    """
    from harness import compare
    from harness.cli.console import open_console
    from harness.cli.messages import tell_losses
    from harness.ops import known_cases
    from harness.report import terminal

    before, after = known_cases.load(reference), known_cases.load(run)
    tell_losses(before, after)
    terminal.render_differences(compare.compare(before, after), open_console())
    for note in compare.mismatches(before, after):
        typer.echo(f"note: {note}")
