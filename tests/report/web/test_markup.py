from __future__ import annotations

from harness.report.tree import (
    Block,
    Column,
    CommandLine,
    Details,
    Facts,
    Figure,
    Items,
    Note,
    Prose,
    Section,
    Table,
    Terms,
    text_column,
)
from harness.report.web.markup import Markup, text
from harness.units import SECONDS
from tests.one_test import one_test


def shown(*blocks: Block, links: dict[str, str] | None = None, pictures: dict[str, bytes] | None = None) -> str:
    return Markup(links or {}, pictures or {}).blocks(blocks, 2)


@one_test(
    ("block", "html"),
    [
        (Note("told", "warning", "label", "a/case", "do this"),
         "<p class='warning'><b>label</b> <code>a/case</code>: told. <span class='advice'>To do: do this.</span></p>"),
        (Note("Told."), "<p>Told.</p>"),
        (Prose("One\nline.\n\nWith `code` <b>."), "<p>One line.</p><p>With <code>code</code> &lt;b&gt;.</p>"),
        (Items((Note("one"), Note("two", "good"))), "<ul><li>one.</li><li class='good'>two.</li></ul>"),
        (Facts((("a", "1"),)), "<dl><dt>a</dt><dd>1</dd></dl>"),
        (Terms((("a", "<1>"),)), "<dl><dt>a</dt><dd>&lt;1&gt;</dd></dl>"),
        (CommandLine("a && b"), "<pre class='command' tabindex='0'><code>a &amp;&amp; b</code></pre>"),
        (Section("T", (Section("U", (Note("n"),)),)),
         "<section><h2>T</h2><section><h3>U</h3><p>n.</p></section></section>"),
        (Details("More", (Note("n"),)), "<details><summary>More</summary><p>n.</p></details>"),
        (Figure("a.svg", "what <it> shows"), "<p class='missing'>No picture: what &lt;it&gt; shows</p>"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)  # fmt: skip
def test_each_block_has_its_markup(block: Block, html: str) -> None:
    assert shown(block) == html


def test_a_table_has_a_caption_heads_with_hints_and_numbers_at_the_right() -> None:
    table = Table(
        (
            text_column("case", ("a/b", "c"), code=True),
            Column("time ({unit})", (1e-6, 2e-6), SECONDS, hint="how long", best=frozenset({1})),
            text_column("empty", ("", "")),
        ),
        "caption",
        ("", "failure"),
    )
    assert shown(table, links={"a/b": "case=a%2Fb"}) == (
        '<div class="wide" role="group" tabindex="0" aria-label="caption"><table><caption>caption</caption><thead><tr>'
        "<th scope='col'>case</th><th scope='col' class='number' title=\"how long\">time (us)</th></tr></thead><tbody>"
        "<tr><td><a href=\"#case=a%2Fb\"><code>a/b</code></a></td><td class='number'>1.000</td></tr>"
        "<tr class='failure'><td><code>c</code></td><td class='number'><b>2.000</b></td></tr></tbody></table></div>"
    )


def test_a_table_without_anything_is_left_out() -> None:
    assert shown(Table((text_column("empty", ("", "")),))) == ""


def test_a_picture_stands_inside_of_the_page() -> None:
    html = shown(Figure("a.svg", 'a "b"'), pictures={"a.svg": b"<svg/>"})
    assert html == '<figure><img alt="a &quot;b&quot;" src="data:image/svg+xml;base64,PHN2Zy8+"></figure>'


def test_characters_that_a_reader_cannot_see_are_replaced() -> None:
    assert text("a\x1b[2J\u202e<'\"&") == "a\ufffd[2J\ufffd&lt;&#x27;&quot;&amp;"
