"""A tidy table for other programs: one row a case, SI units, raw numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.model import Run

SUMMARY = "results.csv: one row a case, SI units, for other programs"


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:  # noqa: ARG001 - a table has no notes
    """Write results.csv. A case of several scenarios has one row, the first one's."""
    from harness.report.frame import frame

    path = folder / "results.csv"
    table = frame(run)
    if len(table):
        table = table.drop_duplicates("case")
    # Twelve digits keep every byte count exact and every time far below its noise.
    table.to_csv(path, index=False, float_format="%.12g", lineterminator="\n")
    return [path]
