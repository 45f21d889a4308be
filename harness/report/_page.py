"""Markdown pages from the templates beside this file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.report._columns import Column

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: Any) -> str:
    """The page that `template` makes of `values`."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        # What is written is Markdown; `cell` and `code` do its escaping.
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"table": table, "pairs": pairs, "cell": cell, "code": code, "text": text}
    return environment


def table(columns: Sequence[Column]) -> str:
    """A Markdown table, padded so that it reads well as plain text too."""
    return "\n".join(f"| {' | '.join(row)} |" for row in zip(*map(_lines, columns), strict=True))


def _lines(column: Column) -> list[str]:
    """Head, rule and cells of a column, all of one width."""
    escape = code if column.code else cell
    head, texts = cell(column.head), [escape(text) for text in column.cells]
    width = max(3, len(head), *map(len, texts))
    align = str.rjust if column.right else str.ljust
    rule = "-" * (width - 1) + ":" if column.right else "-" * width
    return [align(head, width), rule, *(align(text, width) for text in texts)]


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Labels and values as a table of two columns."""
    labels, values = zip(*items, strict=True)
    return table([Column("", labels, right=False), Column("", values, right=False)])


def cell(text: str) -> str:
    """Text that can't break out of a table's cell, nor be taken for HTML."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def code(text: str) -> str:
    """Text as it is, set as code; empty stays empty."""
    text = " ".join(text.replace("`", "'").replace("|", "\\|").split())
    return f"`{text}`" if text else ""


def text(prose: str) -> str:
    """Prose on one line, in which nothing is taken for Markdown or HTML."""
    marked = re.sub(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(prose.split()))
    return marked.replace("&", "&amp;").replace("<", "&lt;")
