"""What a source says to the computer: its text without comments, docstrings and empty lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

_QUOTED = rb'"(?:\\.|[^"\\\n])*"'
_PYTHON = re.compile(
    rb'"{3}(?:\\.|[^\\])*?"{3}|' + rb"'{3}(?:\\.|[^\\])*?'{3}|" + _QUOTED + rb"|'(?:\\.|[^'\\\n])*'|#[^\n]*", re.S
)
_CUDA = re.compile(rb'R"(\w*)\(.*?\)\1"|' + _QUOTED + rb"|'(?:\\.|[^'\\\n])+?'|//[^\n]*|/\*.*?\*/", re.S)
"""Strings, which may hold what looks like a comment, and comments."""


@lru_cache(maxsize=1024)
def without_comments(name: str, text: bytes) -> bytes:
    """The text of a Python or CUDA source without comments, docstrings, empty lines and space at ends of lines.

    name: the file's name, whose ending tells the language. Python that can't be parsed stays as it is.
    """
    try:
        code = _PYTHON.sub(_code, _without_docstrings(text)) if name.endswith(".py") else _CUDA.sub(_code, text)
    except (SyntaxError, ValueError):
        return text
    return b"\n".join(line.rstrip() for line in code.splitlines() if line.strip())


def _code(found: re.Match[bytes]) -> bytes:
    """A string as it is, and a space in place of a comment, which separates words as a comment does."""
    return b" " if found[0].startswith((b"#", b"//", b"/*")) else found[0]


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements inside a node. Expressions, which are nine of ten nodes, aren't entered."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for part in getattr(node, block, ()):
            if isinstance(part, ast.stmt):
                yield part
            yield from statements(part)


def _without_docstrings(text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    strings = [
        node
        for node in statements(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    # From the last to the first, so that the lines before keep their numbers. Columns count bytes.
    for node in sorted(strings, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        last = node.end_lineno or node.lineno
        rest = lines[last - 1][node.end_col_offset :]
        lines[node.lineno - 1 : last] = [lines[node.lineno - 1][: node.col_offset] + rest]
    return b"".join(lines)
