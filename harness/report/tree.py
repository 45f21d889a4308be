"""The tree of tables, notes and figures that pages and screens are made of. Builders make it, renderers draw it.

Nothing in it is formatted: a quantity is a number in SI units, with the unit that says how to write it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.metrics import ALWAYS
from harness.units import PLAIN, Unit

Kind = Literal["", "strong", "good", "warning", "undecided", "failure", "environment"]
"""What a row or a note stands for: an outcome ('strong'), good news, and so on; '' for nothing special."""


@dataclass(frozen=True, slots=True)
class Quantities:
    """Values of one unit, in SI units, in a column of mixed units. Several are shown by their median and range."""

    values: tuple[float, ...]
    unit: Unit


@dataclass(frozen=True, slots=True)
class Range:
    """Two bounds, in SI units of the column's unit."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Two bounds in SI units of their own unit, in a column of mixed units."""

    low: float
    high: float
    unit: Unit


Cell = float | str | Quantities | Range | Bounds
"""A value in SI units of the column's unit, or text; an empty text for nothing."""


def or_nothing(value: float | None) -> Cell:
    """A value as a cell, which is empty if the value isn't known."""
    return "" if value is None else value


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    head: may have {unit}, for the unit that suits all values. unit: how values are written; columns of one unit are
    written in one scale. noun: what is counted, for the head. right: aligned to the right. keep: its rank where the
    table is too wide. code: the text is code, such as the id of a case. best: rows to emphasise. hint: how to read it.
    """

    head: str
    cells: tuple[Cell, ...]
    unit: Unit = PLAIN
    noun: str = ""
    right: bool = True
    keep: int = ALWAYS
    code: bool = False
    best: frozenset[int] = frozenset()
    hint: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether no cell holds anything."""
        return all(cell == "" for cell in self.cells)


def text_column(head: str, cells: Iterable[str], *, keep: int = ALWAYS, code: bool = False, hint: str = "") -> Column:
    """A column of text, aligned to the left."""
    return Column(head, tuple(cells), right=False, keep=keep, code=code, hint=hint)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length. caption: a line above it, which may have {unit} too. kinds: what each row stands for."""

    columns: tuple[Column, ...]
    caption: str = ""
    kinds: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture in a file beside the page. alt: what it shows, for readers who can't see it.

    path: in the folder of the page. draw: writes the picture to a path, and gives the paths written; None where
    something else draws it.
    """

    path: str
    alt: str
    draw: Callable[[Path], list[Path]] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or two for the reader.

    label: a word or two ahead of the text. about: the id of the case that it speaks of. advice: what to do.
    """

    text: str
    kind: Kind = ""
    label: str = ""
    about: str = ""
    advice: str = ""

    @property
    def line(self) -> str:
        """All of the note in one line of plain text."""
        told = ": ".join(filter(None, [" ".join(filter(None, [self.label, self.about])), self.text]))
        return " ".join((f"{told}; {self.advice}" if self.advice else told).split())


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph that its author wrote as Markdown."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """Notes as a list."""

    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and values."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms and what they mean."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, ready for a shell; or a program in another language."""

    text: str
    language: str = "sh"


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title; without a title, only set apart."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a reader unfolds."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """The titles of the page's sections, as links where the format has links."""

    titles: tuple[str, ...]


Block = Contents | Table | Figure | Note | Prose | Items | Facts | Terms | CommandLine | Section | Details


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page, or all that a console shows. title: a console shows none if it is empty."""

    title: str
    blocks: tuple[Block, ...]


def tables(blocks: Sequence[Block]) -> Iterator[Table]:
    """Every table below, in order."""
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Section | Details):
            yield from tables(block.blocks)


def figures_in(blocks: Sequence[Block]) -> Iterator[Figure]:
    """Every figure below, in order."""
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Section | Details):
            yield from figures_in(block.blocks)
