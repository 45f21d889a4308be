"""Figures as SVG, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.model import Run

if TYPE_CHECKING:
    from harness.report.plotting import Plot

PICTURES = True
SUMMARY = "plots/*.svg: bandwidth or another metric by variant and shape, and the ceilings"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a plot has no notes
    """Draw the run's figures into `folder`/plots."""
    return draw_all(run, folder, ".svg")


def draw_all(run: Run, folder: Path, suffix: str, variants: Sequence[str] = ()) -> list[Path]:
    """Draw the run's figures into `folder`/plots, as SVG or PNG by the suffix. variants: only these; all if empty."""
    from harness.report import plotting
    from harness.report.pictures import drawn

    (folder / plotting.FOLDER).mkdir(exist_ok=True)
    found = [
        path for name, draw in planned(run, variants) for path in drawn(name, draw, (folder / name).with_suffix(suffix))
    ]
    with suppress(OSError):  # a folder without pictures would only be in the way
        (folder / plotting.FOLDER).rmdir()
    return found


def planned(run: Run, variants: Sequence[str] = ()) -> Iterator[tuple[str, Callable[[Path], list[Path]]]]:
    """Each picture's path in the run's folder, and the function that draws the picture to a path.

    Pictures name the device and the day of the run. variants: only these; all if empty.
    """
    for name, draw in _planned(run, tuple(variants)):
        yield name, partial(_dated, run, draw)


def draw_one(run: Run, plot: Plot, folder: Path) -> None:
    """Draw one plot of the run into `folder`/plots, as SVG, without the peak of copies.

    Next to the peak, the bars of a small case couldn't be seen.
    """
    from harness.report import charts
    from harness.report.pictures import drawn

    path = folder / plot.path
    path.parent.mkdir(exist_ok=True)
    drawn(plot.path, partial(_dated, run, partial(charts.draw, plot, None)), path)


def _dated(run: Run, draw: Callable[[Path], list[Path]], path: Path) -> list[Path]:
    from harness.report import canvas

    with canvas.origin(f"{run.header.machine.name}, {run.header.started[:10]}"):
        return draw(path)


def _planned(run: Run, variants: tuple[str, ...]) -> Iterator[tuple[str, Callable[[Path], list[Path]]]]:
    from harness.report import build, charts, limit_tables, plotting, sections

    plots, _ = plotting.plan(run, variants)
    peak = run.limits.peak if run.limits else None
    for plot in plots:
        yield plot.path, partial(charts.draw, plot, peak)
    for figure in sections.drawings(run, variants):
        if figure.draw:
            yield figure.path, figure.draw
    if run.limits and run.limits.points and not variants:
        yield f"{plotting.FOLDER}/{build.CEILINGS}", partial(limit_tables.draw, run.limits)
