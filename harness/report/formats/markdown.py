"""The report to read: tables, figures, claims, warnings, and how to get the same numbers again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.model import Run
from harness.report.text import TextColumn, as_text
from harness.report.tree import (
    Block,
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
                yield f"{prose(text.caption)}:"
            yield table(text.columns)
        case Note():
            yield _note(block)
        case Prose():
            yield block.text
        case Items():
            yield "\n".join(f"- {_note(note)}" for note in block.notes)
        case Facts():
            yield _facts(block)
        case Terms():
            yield "\n".join(f"- **{prose(term)}**: {prose(meaning)}." for term, meaning in block.pairs)
        case CommandLine():
            yield f"```sh\n{block.text}\n```"
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
    told = ": ".join(filter(None, [about, prose(note.text)]))
    return f"{told}. To do: {prose(note.advice)}." if note.advice else told


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
    """Text that can't break out of a table's cell, nor be taken for HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def code(text: str) -> str:
    """Text as it is, set as code; empty stays empty."""
    text = " ".join(text.replace("`", "'").replace("|", "\\|").split())
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Prose on one line, in which nothing is taken for Markdown or HTML."""
    marked = re.sub(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
    return marked.replace("&", "&amp;").replace("<", "&lt;")
