"""Trees on a terminal, in its width. Colour adds nothing that the text doesn't say."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from harness.metrics import ALWAYS
from harness.model import Limits, Machine, Run
from harness.report.text import TextColumn, as_text
from harness.report.tree import (
    Block,
    CommandLine,
    Contents,
    Details,
    Facts,
    Figure,
    Items,
    Kind,
    Note,
    Page,
    Prose,
    Section,
    Table,
    Terms,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

_GAP = 2
_NARROWEST = 18
_HEAD_LINES = 3  # lines that a head may take, about
_STYLES: dict[Kind, str] = {
    "": "",
    "strong": "bold",
    "good": "green",
    "warning": "yellow",
    "undecided": "yellow",
    "failure": "red",
    "environment": "magenta",
}


def render(run: Run, console: Console) -> None:
    """A table a scenario, then what failed, what the warnings mean, and how many cases ended in which way."""
    from harness.report import build, older

    show(build.screen(older.without_false_warnings(run)), console)


def render_limits(machine: Machine, limits: Limits, console: Console) -> None:
    """What the machine can do, and the figures that matter most."""
    from harness.report import build

    show(build.screen_of_limits(machine, limits), console)


def show(page: Page, console: Console) -> None:
    """Draw the page. Figures are left out: a terminal shows none."""
    if page.title:
        _tell(console, page.title, "bold")
    _blocks(page.blocks, console)


def _blocks(blocks: Sequence[Block], console: Console) -> None:
    before: Block | None = None
    for block in blocks:
        if isinstance(block, Table) and isinstance(before, Table):
            console.print()
        _block(block, console)
        before = block


def _block(block: Block, console: Console) -> None:  # noqa: C901 - one case a node of the tree
    match block:
        case Table():
            _table(block, console)
        case Note():
            _tell(console, block.line, _STYLES[block.kind])
        case Prose() | CommandLine():
            _tell(console, block.text)
        case Items():
            for note in block.notes:
                _tell(console, note.line, _STYLES[note.kind])
        case Facts() | Terms():
            for label, value in block.pairs:
                _tell(console, f"{label}: {value}")
        case Section() | Details():
            console.print()
            if block.title:
                _tell(console, block.title, "bold")
            _blocks(block.blocks, console)
        case Figure() | Contents():
            pass


def _tell(console: Console, text: str, style: str = "") -> None:
    """A line, wrapped where the console ends."""
    from rich.text import Text

    # Text, not markup: names and errors may hold brackets.
    console.print(Text(text, style=style))


def _table(made: Table, console: Console) -> None:
    """The table, without the least important columns where the console is too narrow for all; says which."""
    text = as_text(made)
    if text.caption:
        _tell(console, text.caption)
    columns = [column for column in text.columns if any(column.cells)]
    kept = _fitting(columns, console.width)
    if any(column.of.code for column in kept) and sum(_least(column) + _GAP for column in kept) - _GAP > console.width:
        _stacked(kept, made.kinds, console)
    else:
        console.print(_grid(kept, made.kinds, console.width))
    if hidden := [column.head for column in columns if column not in kept]:
        needed = sum(_width(column) + _GAP for column in columns) - _GAP
        _tell(console, f"{console.width} columns are too few for: {', '.join(hidden)}; COLUMNS={needed} shows all")


def _grid(kept: Sequence[TextColumn], kinds: Sequence[Kind], width: int) -> Grid:
    """The columns side by side. kinds: what each row stands for, or nothing."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        side: Literal["left", "right"] = "right" if column.of.right else "left"
        grid.add_column(Text(_head(column)), justify=side, no_wrap=column.of.right, overflow="fold", vertical="bottom")
    room = {column.head: _room(column, kept, width) for column in kept if column.of.code}
    for index in range(max((len(column.cells) for column in kept), default=0)):
        cells = [
            Text(
                _broken(column.cells[index], room[column.head]) if column.of.code else column.cells[index],
                style="bold" if index in column.of.best else "",
            )
            for column in kept
        ]
        grid.add_row(*cells, style=_STYLES[kinds[index]] if kinds else "")
    return grid


def _stacked(kept: Sequence[TextColumn], kinds: Sequence[Kind], console: Console) -> None:
    """Each row as its id, then what the other columns say of it. A narrower table would squeeze the ids to nothing."""
    ids = next(column for column in kept if column.of.code)
    for index, id_ in enumerate(ids.cells):
        style = _STYLES[kinds[index]] if kinds else ""
        _tell(console, _broken(id_, console.width), style)
        others = ((column.head, column.cells[index]) for column in kept if column is not ids)
        told = ", ".join(f"{head} {cell}" for head, cell in others if cell)
        _tell(console, textwrap.indent("\n".join(textwrap.wrap(told, console.width - _GAP)), " " * _GAP), style)


def _fitting(columns: Sequence[TextColumn], width: int) -> list[TextColumn]:
    """The columns without the least important ones, where all together are wider than `width`."""
    kept = list(columns)
    while sum(map(_width, kept)) + _GAP * len(kept) - _GAP > width:
        least = min(kept, key=lambda column: column.of.keep)
        if least.of.keep == ALWAYS:
            break
        kept.remove(least)
    return kept


def _head(column: TextColumn) -> str:
    """The head, over a few lines where it is wider than what stands below."""
    words = map(len, column.head.split())
    widest = max(*words, *map(len, column.cells), len(column.head) // _HEAD_LINES)
    return "\n".join(textwrap.wrap(column.head, widest, break_long_words=False, break_on_hyphens=False))


def _width(column: TextColumn) -> int:
    texts = (_head(column), *column.cells)
    return max(len(line) for text in texts for line in text.split("\n"))


def _least(column: TextColumn) -> int:
    """Characters that the column can't do without: those of its numbers, or of a part of its text."""
    return _width(column) if column.of.right else min(_width(column), _NARROWEST)


def _room(column: TextColumn, kept: Sequence[TextColumn], width: int) -> int:
    """Characters that the other columns leave for this one."""
    return max(_NARROWEST, width - sum(_width(other) + _GAP for other in kept if other is not column))


def _broken(id_: str, width: int) -> str:
    """An id over several lines of at most `width`, each ending with '/', '-' or ','; longer parts are left whole."""
    lines = [""]
    for part in re.findall(r"[^/,-]*[/,-]|[^/,-]+", id_):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
