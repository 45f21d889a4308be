"""Tables of the tree as text: the one place where a report formats its numbers."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass

from harness.report.tree import Bounds, Cell, Column, Quantities, Range, Table
from harness.units import PLAIN, Unit, Written

_ERROR_LENGTH = 160


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column as text, and the column that it was made of."""

    head: str
    cells: tuple[str, ...]
    of: Column


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as text."""

    caption: str
    columns: tuple[TextColumn, ...]


def as_text(table: Table) -> TextTable:
    """Write every cell; columns of one unit that count the same are written in one scale."""
    values: dict[tuple[Unit, str], list[float]] = defaultdict(list)
    for column in table.columns:
        values[column.unit, column.noun] += [found for found in column.cells if isinstance(found, int | float)]
    unit, made = "", []
    for column in table.columns:
        own = values[column.unit, column.noun]
        name, form = column.unit.column(own, column.noun)
        unit = name if own else unit
        made.append(TextColumn(_named(column.head, name), tuple(cell(found, form) for found in column.cells), column))
    return TextTable(_named(table.caption, unit), tuple(made))


def _named(text: str, unit: str) -> str:
    """The text with the unit's name in the place of {unit}, or without the place if the unit has no name."""
    if not unit:
        text = text.replace(" ({unit})", "").replace(" in {unit}", "")
    return text.replace("{unit}", unit)


def cell(found: Cell, form: Written = PLAIN.write) -> str:
    """What a cell holds as text. form: writes a plain value."""
    if isinstance(found, str):
        return found
    if isinstance(found, Range):
        return f"{form(found.low)} to {form(found.high)}"
    if isinstance(found, Bounds):
        return f"{found.unit.write(found.low)} to {found.unit.write(found.high)}"
    if isinstance(found, Quantities):
        return _summary(found)
    return form(found)


def _summary(found: Quantities) -> str:
    write = found.unit.write
    middle = write(statistics.median(found.values))
    if len(found.values) == 1:
        return middle
    return f"{middle} ({write(min(found.values))} to {write(max(found.values))}, {len(found.values)} cases)"


def first_line(error: str) -> str:
    """The first line of an error, cut to the length of a table's cell."""
    line = next((line.strip() for line in error.splitlines() if line.strip()), "")
    return line if len(line) <= _ERROR_LENGTH else line[: _ERROR_LENGTH - 1] + "…"
