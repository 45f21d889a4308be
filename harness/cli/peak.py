"""`harness peak`: what this machine can do."""

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
    """Measure what the machine can do, and nothing else.

    Its limits are the library's copy, plain streams by mix of reads and writes and by size, matrix products by type,
    and copies between devices where there are several. They are measured anew, printed, kept for later runs, and
    written with a plot into a folder.
    """
    from harness import devices, report, runner
    from harness.cli.console import open_console
    from harness.cli.progress import follow
    from harness.limits import Needs
    from harness.report import terminal

    kind = devices.choose(device)
    needs = Needs.everything(devices.kinds()[kind].machine())
    with follow(open_console(err=True)) as observer:
        machine, limits = runner.measure_limits(kind, needs, observer)
    terminal.render_limits(machine, limits, open_console())
    folder = output or Path("reports") / f"peak-{kind}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for path in report.write_limits(machine, limits, folder):
        typer.echo(path)
