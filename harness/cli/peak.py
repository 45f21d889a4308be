"""`harness peak`: what this machine can do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from harness import paths
from harness.cli.group import alone

app = alone()
_SECONDS = 3.0  # to see how steady the host is: its speed may stay for a second
EXAMPLES = "\b\nExamples:\n  harness peak\n  harness peak --device cpu --output /tmp/peak"


@app.command("peak", epilog=EXAMPLES)
def command(
    device: Annotated[
        str | None, typer.Option(metavar="KIND", help="Device to measure. Default: the first one that works.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for tables and plot. Default: reports/peak-...")
    ] = None,
) -> None:
    """Measure what the machine can do, and nothing else.

    The limits of a machine are the times of the library's copy, of plain streams by mix of reads and writes and by
    size, of matrix products by type, and of copies between devices if there are several. They are measured anew,
    printed, kept for later runs, and written with a plot into a folder.
    Last, it says how steady the host is: what waits for it is as noisy.
    """
    from harness import devices, report, runner, steadiness
    from harness.cli.columns import flowing
    from harness.cli.console import open_console
    from harness.cli.progress import follow
    from harness.limits import Needs
    from harness.report import terminal

    kind = devices.choose(device)
    needs = Needs.everything(devices.kinds()[kind].machine())
    with follow(open_console(err=True)) as observer:
        machine, limits = runner.measure_limits(kind, needs, observer)
    terminal.render_limits(machine, limits, open_console())
    typer.echo(flowing(steadiness.watch(_SECONDS).sentence))
    folder = output or paths.new_report(f"peak-{kind}")
    for path in report.write_limits(machine, limits, folder, time.strftime("%Y-%m-%d")):
        typer.echo(path)
