from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from harness import report
from harness.model import Measurement, Run


def test_table(run: Run, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    report.write(run, tmp_path, ["csv"])
    golden("results.csv", (tmp_path / "results.csv").read_text())


def test_byte_counts_are_whole_and_exact(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    huge = measured("eager", "float32", (("N", 2**35 + 1),))
    report.write(make_run([huge, measured("tuned", "float32", (("N", 3),), status="out_of_memory")]), tmp_path, ["csv"])
    with (tmp_path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["read_bytes"], rows[0]["N"], rows[1]["time"]) == (str(4 * (2**35 + 1)), str(2**35 + 1), "")


def test_a_case_of_two_scenarios_has_one_row(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    case = [measured("eager", "float32", (("N", 8),))]
    report.write(make_run(case, case, name="first"), tmp_path, ["csv"])
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 2
