"""The report to read: tables, figures, claims, warnings, and how to get the same numbers again.

Text of others stands in it: of scenarios, errors, machines and the files of profilers. Each text is escaped once, where
it is written, as a cell, code, prose, or a paragraph that its author wrote as Markdown. None can end what it stands in,
begin another block, or be taken for HTML. A page that is shown on a terminal makes it do nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.foreign import printable
from harness.model import Run
from harness.report.text import TextColumn, as_text
from harness.report.tree import (
    Block,
    CommandLine,
    Contents,
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

SUMMARY = "report.md: tables and figures, claims beside measurements, the machine and the command"
_DEEPEST = 6


def write(run: Run, folder: Path, notes: Sequence[str] = ()) -> list[Path]:
    """Write report.md, which shows the figures that the format `plots` draws."""
    from harness.report import build

    path = folder / "report.md"
    path.write_text(render(build.page(run, notes)), encoding="utf-8")
    return [path]


def render(page: Page) -> str:
    """The page as Markdown that reads well as plain text too."""
    return "\n\n".join([f"# {prose(page.title)}", *_blocks(page.blocks, 2)]) + "\n"


def _blocks(blocks: Sequence[Block], level: int) -> Iterator[str]:
    """Each block as text, figures that follow each other together."""
    together: list[str] = []
    for block in blocks:
        if isinstance(block, Figure):
            together.append(f"![{prose(block.alt)}]({block.path})")
            continue
        if together:
            yield "\n".join(together)
            together = []
        yield from _block(block, level)
    if together:
        yield "\n".join(together)


def _block(block: Block, level: int) -> Iterator[str]:  # noqa: C901 - one case a node of the tree
    match block:
        case Table():
            text = as_text(block)
            if text.caption:
                yield f"{_first(prose(text.caption))}:"
            yield table(text.columns)
        case Note():
            yield _note(block)
        case Prose():
            yield paragraph(block.text)
        case Contents():
            yield _contents(block.titles)
        case Items():
            yield "\n".join(f"- {_note(note)}" for note in block.notes)
        case Facts():
            yield _facts(block)
        case Terms():
            yield "\n".join(f"- **{prose(term)}**: {prose(meaning)}." for term, meaning in block.pairs)
        case CommandLine():
            yield fenced(block.text, block.language)
        case Section():
            if block.title:
                yield f"{'#' * min(level, _DEEPEST)} {prose(block.title)}"
            yield from _blocks(block.blocks, level + 1)
        case Details():
            yield f"<details><summary>{prose(block.title)}</summary>"
            yield from _blocks(block.blocks, level)
            yield "</details>"


def _note(note: Note) -> str:
    """The note as a sentence: its label, the case, what is told, what to do."""
    about = " ".join(filter(None, [f"**{prose(note.label)}**" if note.label else "", code(note.about)]))
    told = ": ".join(filter(None, [about, prose(note.text) if about else _first(prose(note.text))]))
    return f"{told}. To do: {prose(note.advice)}." if note.advice else told


def _contents(titles: Sequence[str]) -> str:
    """Links to the sections, by the names that GitHub and other viewers give to headings."""
    seen: Counter[str] = Counter()
    links: list[str] = []
    for title in titles:
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        links.append(f"[{prose(title)}](#{name}{f'-{seen[name]}' if seen[name] else ''})")
        seen[name] += 1
    return f"**Contents**: {', '.join(links)}"


def _facts(facts: Facts) -> str:
    labels, values = zip(*facts.pairs, strict=True)
    return table(as_text(Table((text_column("", labels), text_column("", values)))).columns)


def table(columns: Sequence[TextColumn]) -> str:
    """A table, padded so that it reads well as plain text too."""
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*map(_lines, columns), strict=True))


def _lines(column: TextColumn) -> list[str]:
    """Head, rule and cells of a column, all of one width."""
    escape = code if column.of.code else cell
    texts = [escape(text) for text in column.cells]
    texts = [f"**{text}**" if index in column.of.best else text for index, text in enumerate(texts)]
    head = cell(column.head)
    width = max(3, len(head), *map(len, texts))
    align = str.rjust if column.of.right else str.ljust
    rule = "-" * (width - 1) + ":" if column.of.right else "-" * width
    return [align(head, width), rule, *(align(text, width) for text in texts)]


def cell(text: str) -> str:
    """Text that can't break out of a table's cell, nor be taken for HTML, a link or a picture."""
    line = _piped(_line(text)).replace("<", "&lt;")
    return re.sub(r"\](?=[(\[])", r"\\]", line)


def code(text: str) -> str:
    """Text as it is, set as code; empty stays empty."""
    line = _piped(_line(text.replace("`", "'")))
    return f"`{line}`" if line else ""


def prose(text: str) -> str:
    """Prose on one line, in which nothing is taken for Markdown or HTML."""
    marked = re.sub(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", _line(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;")


def paragraph(text: str) -> str:
    """Markdown of others: emphasis, code, links and lists stay. HTML, fences, headings and definitions are plain text.

    They would reach beyond the paragraph: a tag or a fence that nobody closes takes the rest of the page along.
    """
    safe = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(text))
    safe = re.sub(r"`{3,}|~{3,}", lambda run: "\\" + "\\".join(run[0]), safe)
    safe = re.sub(r"^([ \t>]*)(#{1,6}(?:[ \t]|$)|=+[ \t]*$|-+[ \t]*$)", r"\1\\\2", safe, flags=re.MULTILINE)
    return re.sub(r"^([ \t>]*\[[^\]]*\]):", r"\1\\:", safe, flags=re.MULTILINE)


def fenced(text: str, language: str = "sh") -> str:
    """Lines of a language, between fences longer than any in the text."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{language}\n{printable(text)}\n{fence}"


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _piped(line: str) -> str:
    """The line with pipes that are no ends of cells. Backslashes ahead of one would escape the escape."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", line)


def _first(text: str) -> str:
    """Escaped prose at the start of a line, which isn't taken for a heading, a quote, a list or a rule."""
    text = re.sub(r"^(?=#|>|[-+=](?:\s|$)|[-=]+$)", r"\\", text)
    return re.sub(r"^(\d+)(?=[.)](?:\s|$))", r"\1\\", text)
