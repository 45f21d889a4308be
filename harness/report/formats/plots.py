"""Figures as SVG and PNG, in a folder of their own."""

from __future__ import annotations

from pathlib import Path

from harness.model import Run

SUMMARY = "plots/*.svg and *.png: bandwidth by variant and shape, and the ceilings"


def write(run: Run, folder: Path) -> list[Path]:
    """Draw the run's figures into `folder`/plots."""
    from harness.report import _ceilings, _draw, _figures

    figures, _ = _figures.plan(run)
    (folder / _figures.FOLDER).mkdir(exist_ok=True)
    peak = run.ceilings.peak if run.ceilings else None
    paths = [path for figure in figures for path in _draw.draw(figure, peak, folder / figure.png)]
    if run.ceilings and run.ceilings.points:
        paths += _ceilings.draw(run.header.machine, run.ceilings, folder / _figures.FOLDER / "ceilings.png")
    return paths
