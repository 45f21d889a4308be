"""Figures as SVG, in a folder of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.model import Run

PICTURES = True
SUMMARY = "plots/*.svg: bandwidth or another metric by variant and shape, and the ceilings"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a plot has no notes
    """Draw the run's figures into `folder`/plots."""
    from harness.report import build, charts, limit_tables, plotting, sections
    from harness.report.pictures import drawn

    plots, _ = plotting.plan(run)
    (folder / plotting.FOLDER).mkdir(exist_ok=True)
    peak = run.limits.peak if run.limits else None
    paths = [path for plot in plots for path in drawn(plot.path, charts.draw, plot, peak, folder / plot.path)]
    for figure in sections.drawings(run):
        if figure.draw:
            paths += drawn(figure.path, figure.draw, folder / figure.path)
    if run.limits and run.limits.points:
        ceilings = folder / plotting.FOLDER / build.CEILINGS
        paths += drawn(build.CEILINGS, limit_tables.draw, run.header.machine, run.limits, ceilings)
    return paths
