"""`harness peak`: what this machine's memory can do."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = "\b\nExamples:\n  harness peak\n  harness peak --device cpu --output /tmp/peak"


def command(
    device: Annotated[
        str | None, typer.Option(metavar="KIND", help="Device to measure; the first that works unless told.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for table and plot; reports/peak-... unless told.")
    ] = None,
) -> None:
    """Measure what the memory can do, and nothing else.

    The ceilings are the library's copy, and plain streams by mix of reads and writes and by size. They are printed, and
    written with a plot into a folder.
    """
    from harness import devices, report, runner
    from harness.cli.console import open_console
    from harness.cli.progress import follow
    from harness.report import terminal

    kind = devices.choose(device)
    with follow(open_console(err=True), lambda: None) as observer:
        machine, ceilings = runner.measure_ceilings(kind, observer)
    terminal.render_ceilings(machine, ceilings, open_console())
    folder = output or Path("reports") / f"peak-{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for path in report.write_ceilings(machine, ceilings, folder):
        typer.echo(path)
