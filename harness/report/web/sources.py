"""The source of each variant, at the commit of the run where git knows it, highlighted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from harness import source
from harness.model import Header
from harness.ops.catalogue import LOADED
from harness.report.web.markup import text

_LARGEST = 400_000
"""Bytes of a file that the page has room for."""
_CLASSES = {
    "Token.Comment.Preproc": "p",
    "Token.Comment.PreprocFile": "p",
    "Token.Comment": "c",
    "Token.Keyword": "k",
    "Token.Literal.String": "s",
    "Token.Literal.Number": "n",
    "Token.Name.Function": "f",
    "Token.Name.Class": "f",
    "Token.Name.Builtin": "k",
    "Token.Name.Decorator": "p",
}
"""The class of a token by the beginning of its type. Types without one look as plain text does."""


@dataclass(slots=True)
class Sources:
    """Files of one run, each once. files: pairs of a title and the highlighted text."""

    header: Header
    files: list[tuple[str, str]] = field(default_factory=list)
    _places: dict[Path, int] = field(default_factory=dict)
    _of: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def of(self, op: str, variant: str) -> list[int]:
        """The places in `files` of what makes a variant's numbers: its op's files, and the kernels that they name."""
        if (op, variant) not in self._of:
            self._of[op, variant] = [place for path in _paths(op, variant) for place in self._place(path)]
        return self._of[op, variant]

    def _place(self, path: Path) -> Iterator[int]:
        if path not in self._places:
            title, content = self._content(path)
            if len(content) > _LARGEST:
                title, content = f"{title}: too long to show", ""
            self._places[path] = len(self.files)
            self.files.append((title, highlighted(path.name, content)))
        yield self._places[path]

    def _content(self, path: Path) -> tuple[str, str]:
        """A title that says which state of the file this is, and its text."""
        revision = self.header.git_revision
        changes = ", which had uncommitted changes" if self.header.git_dirty else ""
        if (content := source.at_revision(revision, path)) is not None:
            return f"{path.name} at commit {revision[:12]}{changes}", content
        try:
            return f"{path.name} as it is today, since git has none of the run's commit", path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            return f"{path.name}: can't be read", ""


def _paths(op: str, variant: str) -> list[Path]:
    """The files of a variant, its op's kernel first; none if its op isn't loaded, or has no such variant any more."""
    known = LOADED.get(op)
    if known is None or not known.file or variant not in known.variants:
        return []
    try:
        found = source.to_read(*known.files_of(variant))
    except OSError:
        return []
    return sorted(found, key=lambda path: path.name != f"{op}.cu")


def highlighted(name: str, content: str) -> str:
    """A source as HTML; what follows each other in one colour is one element."""
    from pygments.lexers import CudaLexer, PythonLexer

    lexer = PythonLexer() if name.endswith(".py") else CudaLexer()
    pieces = ((_class(str(kind)), value) for kind, value in lexer.get_tokens(content))
    return "".join(f"<i class={own}>{text(value)}</i>" if own else text(value) for own, value in _merged(pieces))


def _merged(pieces: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Neighbours of one class together; white space belongs to either."""
    known, gathered = "", ""
    for own, value in pieces:
        if own == known or not value.strip():
            gathered += value
        else:
            if gathered:
                yield known, gathered
            known, gathered = own, value
    if gathered:
        yield known, gathered


@cache
def _class(kind: str) -> str:
    return next((short for start, short in _CLASSES.items() if kind.startswith(start)), "")
