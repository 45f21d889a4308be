"""Figures as SVG, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from harness.model import Run

PICTURES = True
SUMMARY = "plots/*.svg: bandwidth or another metric by variant and shape, and the ceilings"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a plot has no notes
    """Draw the run's figures into `folder`/plots."""
    from harness.report import plotting
    from harness.report.pictures import drawn

    (folder / plotting.FOLDER).mkdir(exist_ok=True)
    return [path for name, draw in planned(run) for path in drawn(name, draw, folder / name)]


def planned(run: Run) -> Iterator[tuple[str, Callable[[Path], list[Path]]]]:
    """Each picture's path in the run's folder, and the function that draws the picture to a path."""
    from harness.report import build, charts, limit_tables, plotting, sections

    plots, _ = plotting.plan(run)
    peak = run.limits.peak if run.limits else None
    for plot in plots:
        yield plot.path, partial(charts.draw, plot, peak)
    for figure in sections.drawings(run):
        if figure.draw:
            yield figure.path, figure.draw
    if run.limits and run.limits.points:
        yield f"{plotting.FOLDER}/{build.CEILINGS}", partial(limit_tables.draw, run.header.machine, run.limits)
