"""The reference runs of the repository: their reports have the figures that were published."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from harness import report, store

REPORTS = Path(__file__).parent.parent.parent / "reports" / "h200"
RUNS = sorted(path.parent for path in REPORTS.glob("*/run.json"))
RENAMED = {
    "time_s": "time",
    "low_s": "low",
    "high_s": "high",
    "call_time_s": "call_time",
    "effective_bandwidth": "bandwidth",
    "flops_per_s": "flops",
    "items_per_s": "items",
}
"""Columns that had another name when the run was published."""
FIGURES = [*RENAMED, "noise", "moved_bandwidth", "ceiling_bandwidth", "of_peak", "of_ceiling", "speedup", "read_bytes",
           "written_bytes", "moved_bytes", "registers", "local_bytes", "status", "variant", "dtype"]  # fmt: skip


@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: folder.name)
def test_a_reference_run_has_the_figures_that_were_published(folder: Path, tmp_path: Path) -> None:
    report.write(store.load(folder), tmp_path, ["csv", "markdown", "json"])
    with (folder / "results.csv").open(newline="") as published, (tmp_path / "results.csv").open(newline="") as now:
        before, after = list(csv.DictReader(published)), list(csv.DictReader(now))
    assert len(before) == len(after) > 0
    for old, new in zip(before, after, strict=True):
        for name in FIGURES:
            key = RENAMED.get(name, name)
            assert new[key] == old.get(name, old.get(key)), f"{old['case']}: {name}"
