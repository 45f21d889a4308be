from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import report
from harness.model import KernelFacts, Measurement, Run
from harness.report.formats.markdown import cell, code

SHAPE = (("N", 64),)


@pytest.fixture
def page(tmp_path: Path) -> Callable[[Run], str]:
    def write(run: Run) -> str:
        (path,) = report.write(run, tmp_path, ["markdown"])
        return path.read_text(encoding="utf-8")

    return write


@pytest.mark.usefixtures("unloaded")
def test_report(run: Run, page: Callable[[Run], str], golden: Callable[[str, str], None]) -> None:
    golden("report.md", page(run))


def test_every_row_of_a_table_has_as_many_cells_as_its_head(run: Run, page: Callable[[Run], str]) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", page(run), re.MULTILINE)
    assert len(tables) == 10
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.slow  # test_formats.py has all formats
def test_figures_are_linked_where_plots_are_written(run: Run, page: Callable[[Run], str], tmp_path: Path) -> None:
    linked = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page(run))
    written = {path.relative_to(tmp_path).as_posix() for path in report.write(run, tmp_path, ["plots"])}
    assert set(linked) == {path for path in written if path.endswith(".svg")}


def test_several_processes_are_told(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], page: Callable[[Run], str]
) -> None:
    runs = [measured("eager", "float32", SHAPE, share, process=i) for i, share in enumerate((0.5, 0.5005, 0.4995))]
    text = page(make_run(runs))
    assert "Each case was measured in 3 fresh processes." in text
    assert "Their medians lie within 0.20% of each other, at worst in prelu/eager/float32/N64." in text


def test_a_stopped_run_has_cases_of_fewer_processes_and_says_so(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], page: Callable[[Run], str]
) -> None:
    runs = [measured("eager", "float32", SHAPE, 0.5, process=i) for i in range(3)]
    runs += [measured("tuned", "float32", SHAPE, 0.9, process=i) for i in range(2)]
    assert "Each case was measured in 2 to 3 fresh processes." in page(make_run(runs))


def test_an_unfinished_run_says_so(run: Run, page: Callable[[Run], str]) -> None:
    text = page(replace(run, header=replace(run.header, finished=None)))
    assert "Measured 2026-01-01T10:00:00+00:00, not finished, with harness 0.1.0" in text


def test_columns_that_would_be_empty_are_left_out(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], page: Callable[[Run], str]
) -> None:
    head = next(
        line for line in page(make_run([measured("tuned", "float32", SHAPE)])).splitlines() if "| shape" in line
    )
    assert [name.strip() for name in head.strip("|").split("|")] == [
        "shape", "dtype", "variant", "time (ns)", "GB/s", "of peak", "of ceiling", "noise",
    ]  # fmt: skip


def test_local_memory_has_a_column_where_a_kernel_uses_some(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], page: Callable[[Run], str]
) -> None:
    def table(*local: int) -> list[list[str]]:
        kernels = tuple(KernelFacts(f"k{i}", 20 + i, size, 0) for i, size in enumerate(local))
        cases = [measured("tuned", "float32", SHAPE, kernels=kernels), measured("eager", "float32", SHAPE)]
        lines = page(make_run(cases)).splitlines()
        return [[text.strip() for text in line.strip("|").split("|")][-2:] for line in lines if "float32 |" in line]

    # Of several kernels the most; eager's own kernels aren't known.
    assert table(0, 64) == [["21", "64"], ["", ""]]
    assert table(0, 0) == [["0.08%", "21"], ["0.08%", ""]]


def test_cells_hold_pipes_tags_and_line_breaks() -> None:
    assert cell("a|b <k>\nc") == "a\\|b &lt;k> c"
    assert code("a|b `<k>`\nc") == "`a\\|b '<k>' c`"
    assert code("") == ""
