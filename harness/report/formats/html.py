"""The page for people: one file with the answer first, every table and picture, and each case with its details.

It holds its pictures, scripts and data, asks for nothing, and is whole without JavaScript.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.model import Run

if TYPE_CHECKING:
    from harness.report.web.document import Before

SHOWS_PICTURES = True
SUMMARY = "report.html: the answer, filters, plots and every case with its details, in one file for a browser"
NAME = "report.html"


def write(run: Run, folder: Path, notes: Sequence[str] = (), before: Before | None = None) -> list[Path]:
    """Write report.html, with the pictures that the format `plots` left in `folder`, or else draws.

    before: another run, which the page compares this one with.
    """
    from harness.report.web.document import document

    content = document(run, notes, _pictures(run, folder), before)
    path = folder / NAME
    path.write_text(content, encoding="utf-8")
    return [path]


def _pictures(run: Run, folder: Path) -> dict[str, bytes]:
    """The pictures of the run by their path in its folder, the ones there or else drawn for this page alone.

    The picture of the worst comparison is drawn for the page alone.
    """
    from harness.report import plotting
    from harness.report.formats import plots
    from harness.report.web import first

    names = [name for name, _ in plots.planned(run)]
    with TemporaryDirectory() as draft:
        place = folder if (folder / plotting.FOLDER).is_dir() else Path(draft)
        if place != folder:
            plots.write(run, place)
        found = {name: place / name for name in names}
        if worst := first.worst_plot(run):
            plots.draw_one(run, worst, Path(draft))
            found[worst.path] = Path(draft) / worst.path
        return {name: path.read_bytes() for name, path in found.items() if path.is_file()}
