"""Results as HTML, as a notebook shows them: tables of the report's tree, and plots as SVG inside the page."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from harness.foreign import printable
from harness.model import Run
from harness.report import build, comparison
from harness.report.formats import plots
from harness.report.text import as_text
from harness.report.tree import Block, Column, Details, Facts, Items, Note, Page, Prose, Section, Table, text_column
from harness.units import MICROSECONDS

if TYPE_CHECKING:
    from harness.api.timing import Race, Time
    from harness.differences import Compared

MOST_PLOTS = 2
"""Plots of a run that are shown; a report has them all."""


def of_times(times: Sequence[Time], race: Race | None = None) -> str:
    """Times as a table and a plot; those of a race with their ratios."""
    columns = [
        text_column("", (time.name for time in times), code=True),
        Column("time ({unit})", tuple(time.seconds for time in times), MICROSECONDS),
        Column("95% interval (us)", tuple("{:.4g} to {:.4g}".format(*time.interval) for time in times)),
        Column("n", tuple(str(len(time.samples)) for time in times)),
        text_column("timer", (f"{time.timer}, {time.cache}" for time in times)),
    ]
    if all(time.knows_bytes for time in times):
        columns.insert(3, Column("GB/s", tuple(f"{time.gb_per_s:.4g}" for time in times)))
    if race:
        ratios = ("" if name == race.baseline else str(race[name].over()) for name in race)
        columns.append(text_column(f"over {race.baseline}", ratios))
    notes = [
        Note(warning.message, "warning", warning.code, time.name, warning.advice)
        for time in times
        for warning in time.warnings
    ]
    return _whole([*_blocks([Table(tuple(columns)), *notes]), _drawn(lambda path: _draw_times(times, path))])


def of_run(run: Run) -> str:
    """A run as the command line shows it, and its first plots."""
    pictures = (_drawn(draw) for _, draw in islice(plots.planned(run), MOST_PLOTS))
    return _whole([*_blocks(build.screen(run).blocks), *pictures])


def of_comparison(made: Compared) -> str:
    """A comparison as the command line shows it."""
    return of_page(comparison.page(made))


def of_page(page: Page) -> str:
    """A page of the report's tree."""
    return _whole(_blocks(page.blocks))


def _whole(parts: Sequence[str] | Iterator[str]) -> str:
    return f'<div class="harness">{"".join(parts)}</div>'


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Table():
                yield _table(block)
            case Note():
                yield _note(block)
            case Items():
                yield from map(_note, block.notes)
            case Prose():
                yield f"<p>{_text(block.text)}</p>"
            case Facts():
                yield from (f"<p>{_text(label)}: {_text(value)}</p>" for label, value in block.pairs)
            case Section() | Details():
                if block.title:
                    yield f"<h4>{_text(block.title)}</h4>"
                yield from _blocks(block.blocks)
            case _:
                pass


def _table(made: Table) -> str:
    text = as_text(made)
    columns = [column for column in text.columns if any(column.cells)]
    aligned = [f' style="text-align:{"right" if column.of.right else "left"}"' for column in columns]
    heads = "".join(f"<th{style}>{_text(each.head)}</th>" for each, style in zip(columns, aligned, strict=True))
    rows = zip(*(column.cells for column in columns), strict=True)
    lines = (
        "".join(f"<td{style}>{_text(cell)}</td>" for cell, style in zip(row, aligned, strict=True)) for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = f"<caption>{_text(text.caption)}</caption>" if text.caption else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _note(note: Note) -> str:
    return f"<p>{_text(note.line)}</p>"


def _text(text: str) -> str:
    return escape(printable(text))


def _drawn(draw: Callable[[Path], list[Path]]) -> str:
    """The picture that `draw` writes to a path, as SVG that stands in a page."""
    with tempfile.TemporaryDirectory() as folder:
        [path, *_] = draw(Path(folder, "plot.svg"))
        svg = path.read_text(encoding="utf-8")
    return f"<div>{re.sub(r'^.*?(?=<svg)', '', svg, flags=re.DOTALL)}</div>"


def _draw_times(times: Sequence[Time], path: Path) -> list[Path]:
    """The samples of each time as points, and its median with the 95% interval."""
    from harness.report.canvas import WIDE, canvas, save
    from harness.report.looks import SERIES

    title = "Microseconds of a call: samples, median, 95% interval"
    with canvas(0.8 + 0.3 * len(times), title, WIDE) as (figure, axes):
        for place, time in enumerate(times):
            look = SERIES[place % len(SERIES)]
            low, high = time.interval
            axes.plot(time.samples, [place] * len(time.samples), "|", color=look.color, markersize=8, alpha=0.6)
            bars = [[time.us - low], [min(high, max(time.samples)) - time.us]]
            axes.errorbar([time.us], [place], xerr=bars, fmt="o", color="black", markersize=3, capsize=3)
        axes.set_yticks(range(len(times)), [time.name for time in times])
        axes.set_ylim(len(times) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("us")
        return save(figure, path)
