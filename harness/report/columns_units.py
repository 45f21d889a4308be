"""Units of the columns of results.csv, for other programs."""

from __future__ import annotations

from collections.abc import Iterable

from harness import units as written
from harness.metrics import METRICS
from harness.model import COUNTERS
from harness.units import Unit

_SI: dict[Unit, str] = {
    written.SECONDS: "s",
    written.MICROSECONDS: "s",
    written.BANDWIDTH: "B/s",
    written.OPERATIONS: "1/s",
    written.ITEMS: "1/s",
    written.TOKENS: "1/s",
    written.BYTES: "B",
    written.DECIBELS: "dB",
}


def units(columns: Iterable[str]) -> dict[str, str]:
    """The unit of each column that holds a figure: 's', 'B/s', 'B', '1/s'; '' for a share, a ratio, or a count."""
    found: dict[str, str] = {}
    for column in columns:
        counter = COUNTERS.get(column.partition(".")[2])
        if column in METRICS:
            found[column] = _SI.get(METRICS[column].unit, "")
        elif counter:
            found[column] = counter.unit if counter.unit in ("s", "B") else ""
    return found
