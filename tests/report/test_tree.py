"""The neutral tree: how its numbers become text, and that both renderers draw every kind of block."""

from __future__ import annotations

import io
from typing import get_args

import pytest
from rich.console import Console

from harness import units
from harness.report import terminal
from harness.report.formats.markdown import render
from harness.report.text import as_text, cell
from harness.report.tree import (
    Block,
    Column,
    CommandLine,
    Contents,
    Details,
    Facts,
    Figure,
    Items,
    Note,
    Page,
    Prose,
    Quantities,
    Range,
    Section,
    Table,
    Terms,
    tables,
    text_column,
)

SMALL = Table((text_column("name", ["a|b"], code=True), Column("time ({unit})", (2e-3,), units.SECONDS)), "in {unit}")
EVERYTHING = Page(
    "All_ of *it*",
    (
        Note("as it is"),
        Note("it broke", "failure", "failure (x)", "op/a_b/N8", "mend it"),
        Prose("an *author's* text"),
        Section("A part", (SMALL, Figure("plots/a.png", "what it shows"), Figure("b.png", "more"), Section("", ()))),
        Items((Note("one"), Note("two", "warning", "odd in", "op/b"))),
        Facts((("device", "A GPU"),)),
        Terms((("time", "median of the samples"),)),
        CommandLine("harness run 'a b'"),
        Details("More", (Section("Deeper", (Note("deep down"),)),)),
        Contents(("A part", "What it's *for*", "A part")),
    ),
)


def test_every_kind_of_block_is_in_the_page_that_both_renderers_draw() -> None:
    shown = {type(block) for block in (*EVERYTHING.blocks, *EVERYTHING.blocks[3].blocks)}
    assert shown == set(get_args(Block))


def test_markdown() -> None:
    assert render(EVERYTHING) == (
        "# All\\_ of \\*it\\*\n\n"
        "as it is\n\n"
        "**failure (x)** `op/a_b/N8`: it broke. To do: mend it.\n\n"
        "an *author's* text\n\n"
        "## A part\n\n"
        "in ms:\n\n"
        "| name   | time (ms) |\n| ------ | --------: |\n| `a\\|b` |     2.000 |\n\n"
        "![what it shows](plots/a.png)\n![more](b.png)\n\n"
        "- one\n- **odd in** `op/b`: two\n\n"
        "|        |       |\n| ------ | ----- |\n| device | A GPU |\n\n"
        "- **time**: median of the samples.\n\n"
        "```sh\nharness run 'a b'\n```\n\n"
        "<details><summary>More</summary>\n\n"
        "## Deeper\n\n"
        "deep down\n\n"
        "</details>\n\n"
        "**Contents**: [A part](#a-part), [What it's \\*for\\*](#what-its-for), [A part](#a-part-1)\n"
    )


def test_terminal() -> None:
    file = io.StringIO()
    terminal.show(EVERYTHING, Console(file=file, width=60))
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "All_ of *it*", "as it is", "failure (x) op/a_b/N8: it broke; mend it", "an *author's* text", "",
        "A part", "in ms", "       time", "name   (ms)", "a|b   2.000", "", "one", "odd in op/b: two", "device: A GPU",
        "time: median of the samples", "harness run 'a b'", "", "More", "", "Deeper", "deep down",
    ]  # fmt: skip


def test_columns_of_one_unit_are_written_in_one_scale() -> None:
    made = as_text(
        Table(
            (
                Column("before ({unit})", (5e-6, ""), units.SECONDS),
                Column("after ({unit})", (2e-3, "crashed"), units.SECONDS),
                Column("{unit}", (2e9, 3e9), units.ITEMS, "rows"),
                Column("{unit}", (2e6, ""), units.ITEMS, "images"),
            )
        )
    )
    assert [(column.head, column.cells) for column in made.columns] == [
        ("before (us)", ("5.000", "")),
        ("after (us)", ("2000", "crashed")),
        ("G rows/s", ("2.000", "3.000")),
        ("M images/s", ("2.000", "")),
    ]


@pytest.mark.parametrize(
    ("unit", "head", "caption"),
    [(units.SHARE, "share", "float32: share"), (units.BANDWIDTH, "share (GB/s)", "float32: share in GB/s")],
)
def test_a_unit_without_a_name_leaves_no_gap(unit: units.Unit, head: str, caption: str) -> None:
    made = as_text(Table((Column("share ({unit})", (0.5,), unit),), "float32: share in {unit}"))
    assert (made.columns[0].head, made.caption) == (head, caption)


def test_cells_of_several_values() -> None:
    assert cell(Range(0.5, 0.75), units.SHARE.write) == "50.0% to 75.0%"
    assert cell(Quantities((2e9,), units.BANDWIDTH)) == "2.00 GB/s"
    assert cell(Quantities((2.0, 4.0, 3.0), units.RATIO)) == "3.00x (2.00x to 4.00x, 3 cases)"


def test_tables_are_found_wherever_they_lie() -> None:
    inner = Table((text_column("a", ["b"]),))
    assert list(tables((SMALL, Section("", (Details("", (inner,)),))))) == [SMALL, inner]


def test_a_column_is_empty_where_no_cell_holds_anything() -> None:
    assert Column("a", ("", "")).is_empty
    assert not Column("a", ("", 0.0)).is_empty
