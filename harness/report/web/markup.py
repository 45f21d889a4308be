"""The tree of a report as HTML. Each text is escaped once, where it is written: names and errors are a stranger's."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from harness.foreign import printable
from harness.report.text import TextColumn, as_text
from harness.report.tree import (
    Block,
    CommandLine,
    Contents,
    Details,
    Facts,
    Figure,
    Items,
    Kind,
    Note,
    Prose,
    Section,
    Table,
    Terms,
)

_DEEPEST = 6
_CODE = re.compile(r"`([^`\n]+)`")


def text(found: str) -> str:
    """A text of anybody as HTML that shows it, in an element or in an attribute with double quotes."""
    return escape(printable(found))


@dataclass(frozen=True, slots=True)
class Markup:
    """Writes blocks of the tree. links: fragments of the page by the code that leads there. pictures: SVG by path."""

    links: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, bytes] = field(default_factory=dict)

    def blocks(self, blocks: Sequence[Block], level: int) -> str:
        """Blocks as HTML. level: of the headings of sections, 1 to 6."""
        return "\n".join(part for block in blocks for part in self._block(block, level))

    def _block(self, block: Block, level: int) -> Iterator[str]:  # noqa: C901 - one case a node of the tree
        match block:
            case Table():
                yield self.table(block)
            case Note():
                yield f"<p{_class(block.kind)}>{self.note(block)}</p>"
            case Prose():
                yield prose(block.text)
            case Contents():
                pass  # the page folds its sections, so that their titles stand below each other anyway
            case Items():
                items = "".join(f"<li{_class(note.kind)}>{self.note(note)}</li>" for note in block.notes)
                yield f"<ul>{items}</ul>"
            case Facts() | Terms():
                pairs = "".join(f"<dt>{text(label)}</dt><dd>{text(value)}</dd>" for label, value in block.pairs)
                yield f"<dl>{pairs}</dl>"
            case CommandLine():
                yield command(block.text)
            case Figure():
                yield self.figure(block)
            case Section():
                title = f"<h{min(level, _DEEPEST)}>{text(block.title)}</h{min(level, _DEEPEST)}>" if block.title else ""
                yield f"<section>{title}{self.blocks(block.blocks, level + 1)}</section>"
            case Details():
                yield f"<details><summary>{text(block.title)}</summary>{self.blocks(block.blocks, level)}</details>"

    def note(self, note: Note) -> str:
        """A note as a sentence: its label, the case, what is told, what to do."""
        label = f"<b>{text(note.label)}</b>" if note.label else ""
        ahead = " ".join(filter(None, [label, self.code(note.about) if note.about else ""]))
        told = ": ".join(filter(None, [ahead, text(_ended(note.text))]))
        return told + (f" <span class='advice'>To do: {text(_ended(note.advice))}</span>" if note.advice else "")

    def code(self, found: str) -> str:
        """A code, which is a link where it leads somewhere."""
        return self._linked(found, f"<code>{text(found)}</code>")

    def link(self, code: str, shown: str) -> str:
        """A text that leads where a code does."""
        return self._linked(code, text(shown))

    def _linked(self, code: str, shown: str) -> str:
        return f'<a href="#{text(self.links[code])}">{shown}</a>' if code in self.links else shown

    def figure(self, figure: Figure, alt: str = "") -> str:
        """A picture inside of the page; what it shows where there is none."""
        picture = self.pictures.get(figure.path)
        if picture is None:
            return f"<p class='missing'>No picture: {text(figure.alt)}</p>"
        data = base64.b64encode(picture).decode()
        return f'<figure><img alt="{text(alt or figure.alt)}" src="data:image/svg+xml;base64,{data}"></figure>'

    def table(self, table: Table, name: str = "") -> str:
        """A table in a region that scrolls where the page is too narrow. name: its name where it has no caption."""
        made = as_text(table)
        kept = [column for column in made.columns if not column.of.is_empty]
        if not kept:
            return ""
        caption = f"<caption>{text(made.caption)}</caption>" if made.caption else ""
        heads = "".join(f"<th scope='col'{_side(column)}{_hint(column)}>{text(column.head)}</th>" for column in kept)
        rows = "".join(
            f"<tr{_class(table.kinds[index] if table.kinds else '')}>{self._cells(kept, index)}</tr>"
            for index in range(len(kept[0].cells))
        )
        label = text(made.caption or name or "table")
        return (
            f'<div class="wide" role="group" tabindex="0" aria-label="{label}">'
            f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _cells(self, columns: Sequence[TextColumn], index: int) -> str:
        return "".join(f"<td{_side(column)}>{self._cell(column, index)}</td>" for column in columns)

    def _cell(self, column: TextColumn, index: int) -> str:
        found = column.cells[index]
        shown = self.code(found) if column.of.code and found else text(found)
        return f"<b>{shown}</b>" if index in column.of.best else shown


def prose(found: str) -> str:
    """Paragraphs that their author wrote as Markdown, of which only code is kept as such."""
    paragraphs = (text(" ".join(own.split())) for own in re.split(r"\n\s*\n", found.strip()))
    return "".join("<p>" + _CODE.sub(r"<code>\1</code>", own) + "</p>" for own in paragraphs)


def command(found: str) -> str:
    """A command line, which a script may offer to copy."""
    return f"<pre class='command' tabindex='0'><code>{text(found)}</code></pre>"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", ":")) else f"{sentence}."


def _class(kind: Kind) -> str:
    return f" class='{kind}'" if kind else ""


def _side(column: TextColumn) -> str:
    return " class='number'" if column.of.right else ""


def _hint(column: TextColumn) -> str:
    return f' title="{text(column.of.hint)}"' if column.of.hint else ""
