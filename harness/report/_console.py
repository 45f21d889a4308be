"""Tables and lines on a console. Colour only underlines what the text says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from harness.report._columns import ESSENTIAL, Column

if TYPE_CHECKING:
    from rich.console import Console

GAP = 2


def draw(made: Sequence[Column], console: Console, styles: Sequence[str] = ()) -> None:
    """Draw the columns, without the least important ones where the console is too narrow for all."""
    from rich.table import Table
    from rich.text import Text

    kept = fitting(made, console.width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in kept:
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(Text(_head(column)), justify=side, no_wrap=column.right, overflow="fold", vertical="bottom")
    for index, row in enumerate(zip(*(column.cells for column in kept), strict=True)):
        table.add_row(*map(Text, row), style=styles[index] if styles else "")
    console.print(table)


def fitting(made: Sequence[Column], width: int) -> list[Column]:
    """The columns that have cells, without the least important ones where all together are wider than `width`."""
    kept = [column for column in made if any(column.cells)]
    while sum(map(_width, kept)) + GAP * len(kept) - GAP > width:
        least = min(kept, key=lambda column: column.keep)
        if least.keep == ESSENTIAL:
            break
        kept.remove(least)
    return kept


def _head(column: Column) -> str:
    """The head, over two lines where it is wider than what stands below."""
    return column.head.replace(" ", "\n") if len(column.head) > max(map(len, column.cells)) else column.head


def _width(column: Column) -> int:
    texts = (_head(column), *column.cells)
    return max(len(line) for text in texts for line in text.split("\n"))


def headline(console: Console, text: str) -> None:
    """A line in bold after an empty one."""
    console.print()
    tell(console, text, "bold")


def tell(console: Console, text: str, style: str = "") -> None:
    """A line, wrapped where the console ends."""
    from rich.text import Text

    # Text, not markup: names and errors may hold brackets.
    console.print(Text(text, style=style))
