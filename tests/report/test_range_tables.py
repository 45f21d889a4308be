"""Tables of NVTX ranges: nesting, the case's own range, shares of the kernels' time, and notes."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from harness.model import Attachment, RangeProfile, Run
from harness.report import build, range_tables, terminal
from harness.report.tree import Note, Page, Table, tables

CASE = "step/eager/float32/N1"


def one(name: str, depth: int, count: float = 1.0, **values: float) -> RangeProfile:
    return RangeProfile(name, depth, count, tuple(values.items()))


def found(case: str, *ranges: RangeProfile, time: float = 0.0, notes: tuple[str, ...] = ()) -> Attachment:
    return Attachment(case, "nsys", (("time", time),) if time else (), ranges=ranges, notes=notes)


def shown(*attachments: Attachment) -> list[list[str]]:
    """The lines of the screen, in words."""
    written = io.StringIO()
    console = Console(file=written, width=120)
    terminal.show(Page("", tuple(range_tables.blocks(attachments))), console)
    return [line.split() for line in written.getvalue().splitlines() if line.strip()]


def test_a_case_s_ranges_lie_below_it_with_their_share_of_its_kernels() -> None:
    whole = one(CASE, 0, 0.25, time=8e-3, median=32e-3, kernels=6, kernel_time=4e-3)
    forward = one("forward", 1, time=2e-3, median=2e-3, kernels=4, kernel_time=1e-3)
    block = one("block 0", 2, 1.5, time=1e-3, median=0.5e-3, kernels=0, kernel_time=0)
    title, *_, head, all_, first, second = shown(found(CASE, whole, forward, block, time=4e-3))
    assert title == [f"{CASE},", "ranges", "by", "nsys"]
    assert head == ["range", "count", "(us)", "(us)", "kernels", "(us)", "share"]
    assert all_ == ["(the", "whole)", "8000", "6", "4000", "100.0%"]
    assert first == ["·", "forward", "1", "2000", "2000", "4", "1000", "25.0%"]
    assert second == ["·", "·", "block", "0", "1.5", "1000", "500.0", "0", "0", "0.0%"]


def test_columns_of_kernels_are_left_out_where_there_are_none() -> None:
    lines = shown(found("", one("step", 0, 3, time=3e-3, median=1e-3), one("open", 1, 1)))
    assert lines[0] == ["a", "program,", "ranges", "by", "nsys"]
    assert lines[2:] == [
        ["range", "count", "(ms)", "(ms)"],
        ["step", "3", "3.000", "1.000"],
        ["·", "open", "1"],
    ]


def test_a_note_of_many_cases_is_told_once() -> None:
    blocks = list(range_tables.blocks([found(case, notes=("No kernels.",)) for case in ("a", "b")]))
    assert blocks == [Note("No kernels.", "warning", "nsys")]


def test_a_long_name_is_cut_at_its_end() -> None:
    (table,) = range_tables.blocks([found("", one("x" * 100, 1, time=1.0))])
    assert isinstance(table, Table)
    assert table.columns[0].cells == ("· " + "x" * 59 + "…",)


def test_a_run_s_page_has_them(run: Run) -> None:
    titles = [getattr(block, "title", "") for block in build.page(run).blocks]
    assert "Ranges" not in titles
    page = build.page(replace(run, attachments=(found(run.results[0].case.id, one("forward", 1, time=1.0)),)))
    (section,) = (block for block in page.blocks if getattr(block, "title", "") == "Ranges")
    assert [table.columns[0].cells for table in tables([section])] == [("· forward",)]
