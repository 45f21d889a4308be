"""Aligned columns. Drawing them with rich would take longer than everything that a listing does."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

Row = Sequence[str]

_GAP = 2
_NARROWEST = 24  # characters that the last column has at least
_USUAL = 80
_LONGEST = 60  # characters of a word that isn't to be broken, such as a name that is to be copied


def aligned(rows: Sequence[Row], indent: int = 2) -> list[str]:
    """The rows as lines. On a terminal the last column is wrapped where the terminal ends; in a pipe it never is."""
    if not rows:
        return []
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    start = indent + sum(width + _GAP for width in widths)
    room = _columns() - start
    longest = max((len(word) for row in rows for word in row[-1].split()), default=0)
    if room < max(_NARROWEST, min(longest, _LONGEST)):
        # The last column stands below the other columns, where they leave no room beside them.
        start, room = 2 * indent + _GAP, _columns() - 2 * indent - _GAP
        return [line for row in rows for line in _below(row, widths, indent, start, room)]
    return [line for row in rows for line in _beside(row, widths, indent, start, room)]


def filled(names: Sequence[str], indent: int = 2) -> list[str]:
    """Names one after the other, in lines of at most 80 columns."""
    return [f"{'':{indent}}{line}".rstrip() for line in _wrapped(", ".join(names), min(_columns(), _USUAL) - indent)]


def flowing(text: str) -> str:
    """The text, each line wrapped where the terminal ends, and indented further from there on; in a pipe as it is."""
    lines = [(line, " " * (len(line) - len(line.lstrip()) + _GAP)) for line in text.splitlines()]
    return "\n".join(part for line, indent in lines for part in _wrapped(line, _columns(), indent))


def _beside(row: Row, widths: Sequence[int], indent: int, start: int, room: int) -> list[str]:
    first, *more = _wrapped(row[-1], room)
    return [f"{_cells(row, widths, indent):{start}}{first}".rstrip(), *(f"{'':{start}}{line}" for line in more)]


def _below(row: Row, widths: Sequence[int], indent: int, start: int, room: int) -> list[str]:
    return [_cells(row, widths, indent).rstrip(), *(f"{'':{start}}{line}" for line in _wrapped(row[-1], room) if line)]


def _cells(row: Row, widths: Sequence[int], indent: int) -> str:
    return " " * indent + (" " * _GAP).join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))


def _wrapped(text: str, room: int, indent: str = "") -> list[str]:
    """The text in lines, all but the first one indented. A word longer than the room, such as a path, stays whole."""
    return textwrap.wrap(text, room, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def _columns() -> int:
    """Width of the terminal, or of COLUMNS; endless in a pipe."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return sys.maxsize
