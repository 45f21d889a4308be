from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from harness import report
from harness.model import Limits, Machine, StreamPoint
from harness.report import limit_tables
from harness.report.text import as_text
from tests.one_test import one_test


@one_test(("share", "name"), [(1.0, "1:0"), (0.75, "3:1"), (0.67, "2:1"), (0.5, "1:1"), (0.33, "1:2"), (0.0, "0:1")])
def test_mixes_are_named_by_small_numbers(share: float, name: str) -> None:
    assert limit_tables.mix(share) == name


def test_page(gpu: Machine, limits: Limits, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    report.write_limits(gpu, limits, tmp_path)
    golden("peak.md", (tmp_path / "peak.md").read_text())


def test_table_keeps_every_stream_that_was_tried(gpu: Machine, limits: Limits, tmp_path: Path) -> None:
    report.write_limits(gpu, limits, tmp_path)
    with (tmp_path / "peak.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["when"] for row in rows] == ["start"] * 10 + ["end"]
    assert rows[0] == {
        "read": "1000000", "written": "0", "seconds": "2.08333333333e-07", "way": "kernel", "is_copy": "False",
        "moved": "1000000", "mix": "1:0", "bandwidth": "4.8e+12", "best": "True", "when": "start",
    }  # fmt: skip
    # A tie between two ways at 10 GB, 1:1: the one that was tried first is the best.
    assert [row["best"] for row in rows if row["moved"] == "10000000000" and row["mix"] == "1:1"] == [
        "True", "False", "False",
    ]  # fmt: skip


def test_mixes_that_move_nearly_the_same_bytes_share_a_row() -> None:
    points = (StreamPoint(999_936, 0, 1e-6, "a"), StreamPoint(500_000, 500_000, 1e-6, "a"), StreamPoint(9, 0, 1, "a"))
    (table,) = limit_tables.tables(Limits(points))
    size, reads, copy = as_text(table).columns
    assert (size.cells, reads.cells, copy.cells) == (("9 B", "1.00 MB"), ("0.00000000900", "999.9"), ("", "1000"))
