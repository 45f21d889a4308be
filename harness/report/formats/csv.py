"""A tidy table for other programs: one row a case, SI units, raw numbers.

A spreadsheet computes a cell that begins as a formula does, and texts come from scenarios, plug-ins and profilers of
others. Such a text begins with an apostrophe here, by which a spreadsheet takes it for text. A number is never changed,
nor a text that reads as a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.foreign import printable
from harness.model import Run

SUMMARY = "results.csv: one row a case, SI units, for other programs"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a table has no notes
    """Write results.csv. A case of several scenarios has one row, the first one's."""
    from harness.report.frame import frame

    path = folder / "results.csv"
    table = frame(run)
    if len(table):
        table = table.drop_duplicates("case")
    table = table.rename(columns=defused)
    for column in table.select_dtypes(exclude="number"):
        table[column] = table[column].map(defused)
    # Twelve digits keep every byte count exact and every time far below its noise.
    table.to_csv(path, index=False, float_format="%.12g", lineterminator="\n")
    return [path]


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a formula begins with, also after spaces that a spreadsheet leaves out."""


def defused(value: Any) -> Any:
    """A cell that no spreadsheet computes and no terminal obeys: a text with an apostrophe ahead where it needs one."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if value.lstrip(" ").startswith(_FORMULA) and not _is_number(value) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
