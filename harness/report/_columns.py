"""The main table as text: what stands in each column, for whichever way it is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import units

if TYPE_CHECKING:
    import pandas as pd

ESSENTIAL = 9
_ERROR_LENGTH = 160
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of text.

    `keep` ranks it for narrow consoles: ESSENTIAL ones stay, then the higher the longer. `code` is text that no
    markup may change.
    """

    head: str
    cells: tuple[str, ...]
    right: bool = True
    keep: int = ESSENTIAL
    code: bool = False


def columns(table: pd.DataFrame, baseline: str) -> list[Column]:
    """Columns of one scenario's rows of the frame, without those that would be empty.

    A case without a time shows its status in the place of the time.
    """
    scale, unit = units.time_scale(table["time_s"].dropna())
    times = _cells(table["time_s"], lambda value: units.significant(value / scale))
    moved = table["moved_bandwidth"].where(table["moved_bytes"] > table["read_bytes"] + table["written_bytes"])
    made = [
        Column("shape", tuple(table["shape"]), right=False),
        Column("cache", tuple(table["cache"].where(table["cache"] != "cold", "")), right=False, keep=8),
        Column("dtype", tuple(table["dtype"]), right=False),
        Column("variant", tuple(table["variant"]), right=False),
        Column(f"time ({unit})", tuple(t or status for t, status in zip(times, table["status"], strict=True))),
        Column("GB/s", _cells(table["effective_bandwidth"], units.gigabytes)),
        Column("moved GB/s", _cells(moved, units.gigabytes), keep=3),
        _items(table),
        Column("of peak", _cells(table["of_peak"], units.percent), keep=5),
        Column("of ceiling", _cells(table["of_ceiling"], units.percent)),
        Column(f"vs {baseline}", _cells(table["speedup"], units.ratio)),
        Column("noise", _cells(table["noise"], lambda value: units.percent(value, 2)), keep=4),
        Column("registers", _cells(table["registers"], _count), keep=2),
        Column("local bytes", _cells(table["local_bytes"].where(table["local_bytes"] > 0), _count), keep=6),
        Column("warnings", tuple(table["warnings"].str.replace(";", ", ")), right=False, keep=6),
        Column("error", tuple(map(first_line, table["error"])), right=False, keep=1, code=True),
    ]
    return [column for column in made if any(column.cells)]


def _count(value: float) -> str:
    return f"{value:.0f}"


def first_line(error: str) -> str:
    """What an error says first, cut to a length that a table bears."""
    line = next((line.strip() for line in error.splitlines() if line.strip()), "")
    return line if len(line) <= _ERROR_LENGTH else line[: _ERROR_LENGTH - 1] + "…"


def _items(table: pd.DataFrame) -> Column:
    """What users count, a second, in one prefix for the column."""
    rates = table["items_per_s"].dropna()
    scale, prefix = next((p for p in _PREFIXES if rates.min() >= p[0]), _PREFIXES[-1])
    name = next(filter(None, table["item"]), "") or "items"
    cells = _cells(table["items_per_s"], lambda value: units.significant(value / scale))
    return Column(f"{prefix} {name}/s".strip(), cells, keep=7)


def _cells(values: Iterable[float], form: Callable[[float], str]) -> tuple[str, ...]:
    return tuple("" if math.isnan(value) else form(value) for value in values)
