"""Text of others in reports: it ends nothing, begins nothing, and no spreadsheet computes it."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from harness import report
from harness.model import Measurement, Run
from harness.report.formats.csv import defused
from harness.report.formats.markdown import cell, code, fenced, paragraph, prose, render
from harness.report.tree import (
    Column,
    CommandLine,
    Details,
    Facts,
    Figure,
    Items,
    Note,
    Page,
    Prose,
    Section,
    Table,
    Terms,
    text_column,
)
from tests.one_test import one_test
from tests.properties import bounded

HOSTILE = [
    "<script>alert(1)</script>",
    "<!-- ",
    "</details><details>",
    "<img src=x onerror=alert(1)>",
    "```\n# out\n```",
    "```",
    "~~~~",
    "a | b | c",
    "a \\| b \\\\| c",
    "# heading",
    "heading\n====",
    "heading\n---",
    "---",
    "> quote",
    "- item",
    "1. item",
    "[a](javascript:alert(1)) ![b](http://x/y.png)",
    "[1]: http://x",
    "`",
    "``` `` `",
    "**",
    "\x1b[2J\x1b]0;x\x07",
    "\u202e\r\x85\u2028x",
    "\n\n\n| a | b |\n|---|---|\n| c | d |\n",
    "&lt;b&gt; &#60;b>",
    "{unit}",
    "\ud800",
]
ANY_TEXT = st.lists(st.sampled_from([*HOSTILE, " ", "\n", "\n\n", "x"]) | st.text(max_size=4), max_size=4).map("".join)


def page(text: str) -> Page:
    """A page with the text wherever one may stand, and blocks of our own around each."""
    blocks = (
        Prose(text),
        Note(text),
        Note(text, label=text, about=text, advice=text),
        Items((Note(text), Note("ours"))),
        Table((text_column(text, (text, "ours")), text_column("ids", (text, "ours"), code=True)), caption=text),
        Facts(((text, text), ("ours", "ours"))),
        Terms(((text, text),)),
        Figure("plots/ours.svg", text),
        CommandLine(text),
        Details(text, (Note(text), Table((Column("number", (1.5,), hint=text),)))),
    )
    return Page("ours" + text, tuple(Section(f"own {number}{text}", (block,)) for number, block in enumerate(blocks)))


def parsed(page: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page)


def inline(tokens: Sequence[Token]) -> list[Token]:
    return [child for token in tokens for child in (token, *inline(token.children or ()))]


def built_as_ours(text: str) -> None:
    """Only the page's own blocks are there: its headings, tables, fences, pictures and HTML."""
    written = render(page(text))
    tokens = parsed(written)
    every = Counter(token.type for token in inline(tokens))
    html = [token.content for token in inline(tokens) if token.type.startswith("html")]
    assert [each for each in html if not each.startswith(("<details><summary>", "</details>"))] == []
    assert len(html) == 2
    assert every["heading_open"] == 11
    assert every["fence"] == 1
    assert [token.level for token in tokens if token.type == "heading_open"] == [0] * 11
    rows = [sum(one.type in ("th_open", "td_open") for one in tokens[a:b]) for a, b in spans(tokens, "tr")]
    # A table that the author of a paragraph wrote stands ahead of ours.
    assert rows[-8:] == [2, 2, 2, 2, 2, 2, 1, 1]
    assert not any(sign < " " and sign not in "\t\r\n" for sign in written)
    written.encode()


def spans(tokens: Sequence[Token], kind: str) -> list[tuple[int, int]]:
    opened = [index for index, token in enumerate(tokens) if token.type == f"{kind}_open"]
    closed = [index for index, token in enumerate(tokens) if token.type == f"{kind}_close"]
    return list(zip(opened, closed, strict=True))


@one_test("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_of_others_is_text(text: str) -> None:
    built_as_ours(text)


@pytest.mark.slow  # the test above has the texts that mean something
@bounded
@given(ANY_TEXT)
def test_any_text_is_text(text: str) -> None:
    built_as_ours(text)


def test_each_place_escapes_once() -> None:
    assert prose("a_b _c_ <d> & [e](f)") == "a_b \\_c\\_ &lt;d> &amp; \\[e\\](f)"
    assert cell("a \\| b [c](d) e[0]") == "a \\\\\\| b [c\\](d) e[0]"
    assert code("a `b` \\| c") == "`a 'b' \\\\\\| c`"
    assert paragraph("*a* `b` [c](d) x < 3, a<b>\n# e\n") == "*a* `b` [c](d) x < 3, a&lt;b>\n\\# e\n"
    assert fenced("a\n```\nb") == "````sh\na\n```\nb\n````"
    assert fenced("a", "python") == "```python\na\n```"


# ---- Tables for other programs.


@one_test(
    ("value", "written"),
    [
        ("=1+2", "'=1+2"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-x", "'-x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\ufffd=1"),
        ("  =1", "'  =1"),
        ("\x1b[2J", "\ufffd[2J"),
        ("-1.5e-3", "-1.5e-3"),
        ("-inf", "-inf"),
        ("a=b", "a=b"),
        ("", ""),
        (-1.5, -1.5),
        (None, None),
    ],
)
def test_a_text_that_begins_as_a_formula_has_an_apostrophe_ahead(value: object, written: object) -> None:
    assert defused(value) == written


def test_a_table_has_no_formula_and_pandas_reads_its_numbers(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    case = measured("eager", "float32", (("N", 8), ("=n", 4)), choices=(("mode", "=1+1"), ("shift", -0.5)))
    failed = measured("@tuned", "float32", (("N", 8), ("=n", 4)), status="crashed", error='=HYPERLINK("http://x")')
    report.write(make_run([case, failed], name="-scenario"), tmp_path, ["csv"])
    with (tmp_path / "results.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell.startswith(("=", "@", "+"))] == []
    table = pd.read_csv(tmp_path / "results.csv")
    assert table["time"].dtype == table["shift"].dtype == float
    assert table["'=n"].tolist() == [4, 4]
    assert table["shift"].tolist()[0] == -0.5
    assert table["error"].tolist()[1] == '\'=HYPERLINK("http://x")'
