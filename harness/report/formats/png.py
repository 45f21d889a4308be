"""The figures of the format `plots` as PNG: for slides, and for programs that show no SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.model import Run

PICTURES = True
ON_DEMAND = True
SUMMARY = "plots/*.png: the figures of 'plots' for slides; written only if it is asked for"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a plot has no notes
    """Draw the run's figures into `folder`/plots."""
    from harness.report.formats.plots import draw_all

    return draw_all(run, folder, ".png")
