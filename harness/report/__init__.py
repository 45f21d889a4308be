"""A run as files to read. One format a file in `formats/`, found by its name.

A format has `SUMMARY`, one line, and `write(run, folder, notes) -> list[Path]`, which writes its files into the run's
folder; one that draws has `PICTURES = True` too, one that shows what was drawn `SHOWS_PICTURES = True`, and one that is
written only if it is named `ON_DEMAND = True`. `terminal` draws on a console instead, so it isn't a format. Nothing
here loads pandas or matplotlib until it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from harness.discover import discover
from harness.errors import UsageError, nearest
from harness.model import Limits, Machine, Run
from harness.ops.codes import Codes
from harness.report.pictures import drawn, write_all
from harness.report.placing import into, placed


class Format(Protocol):
    """What a file in `formats/` offers."""

    SUMMARY: str

    def write(self, run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:
        """Write the run's files into `folder`, which exists. Gives their paths. notes: what else to say of the run."""


def every_format() -> dict[str, Format]:
    """Every format by name. Raises UsageError for a file that lacks what a format must have."""
    modules = discover(f"{__name__}.formats", ["SUMMARY", "write"])
    return {name: cast(Format, module) for name, module in modules.items()}


def write(run: Run, folder: Path, formats: Sequence[str] | None = None, notes: Sequence[str] = ()) -> list[Path]:
    """Write the named formats of a run, or all that aren't on demand, into its folder. Gives the paths written.

    notes: sentences that the report begins with, such as `stale` gives. Texts are written first. A picture that
    can't be drawn is a warning on standard error. Raises UsageError for an unknown format, and MachineError if the
    folder can't be written.
    """
    found = every_format()
    unknown = [name for name in formats or () if name not in found]
    if unknown:
        raise UsageError(f"no report format named '{unknown[0]}'", nearest(unknown[0], found))
    from harness.report import older

    shown = older.without_false_warnings(run)
    usual = [name for name, each in found.items() if not getattr(each, "ON_DEMAND", False)]
    with into(folder):
        return write_all(
            {name: found[name] for name in formats or usual}, lambda each: each.write(shown, folder, notes)
        )


SLIDES = "slides"
_SUFFIXES = {"plots": ".svg", "png": ".png"}


def write_slides(run: Run, folder: Path, variants: Sequence[str], formats: Sequence[str] | None = None) -> list[Path]:
    """Draw the pictures of a run with these variants only, into `folder`/slides. Gives the paths written.

    formats: `plots`, which is SVG, or `png`, or both; SVG unless told. Raises UsageError for another format, and for a
    variant that the run has no case of.
    """
    from harness.report import older
    from harness.report.formats.plots import draw_all

    known = dict.fromkeys(m.case.variant for m in run.measurements)
    if unknown := [name for name in variants if name not in known]:
        raise UsageError(f"the run has no variant '{unknown[0]}'", nearest(unknown[0], known))
    if others := [name for name in formats or () if name not in _SUFFIXES]:
        advice = "leave out --variants, or name plots, which is SVG, or png"
        raise UsageError(f"--variants chooses what pictures show, and '{others[0]}' is no format of pictures", advice)
    shown = older.without_false_warnings(run)
    with into(folder / SLIDES):
        return [
            path
            for name in formats or ["plots"]
            for path in draw_all(shown, folder / SLIDES, _SUFFIXES[name], variants)
        ]


def write_limits(machine: Machine, limits: Limits, folder: Path, day: str = "") -> list[Path]:
    """Write what a machine can do as a page, tables and a plot: peak.md, peak.csv, peak.svg.

    day: when it was measured, for the plot. peak_compute.csv and peak_links.csv are written where such peaks were
    measured. Raises as `placed` does.
    """
    from harness.report import build, canvas, limit_tables
    from harness.report.formats.markdown import render

    def write_all_of_it(draft: Path) -> list[Path]:
        page, figure = draft / "peak.md", "peak.svg"
        page.write_text(render(build.page_of_limits(machine, limits, figure)), encoding="utf-8")
        tables = limit_tables.write_points(limits, draft)
        with canvas.origin(", ".join(filter(None, [machine.name, day]))):
            pictures = drawn(figure, limit_tables.draw, limits, draft / figure) if limits.points else []
        return [page, *tables, *pictures]

    return placed(folder, write_all_of_it)


def stale(run: Run, current: Codes) -> list[str]:
    """Sentences about results that were measured with other code than the present; none if all have the same code.

    current: the present code of each variant, by the names of its op and its own.
    """
    from harness.report import preface

    return preface.stale(run, current)
