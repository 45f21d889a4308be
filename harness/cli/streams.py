"""Standard output and standard error: where text meets the terminal.

Text of others stands in what is printed: of stored runs, scenarios, plug-ins, profilers. A terminal obeys control
characters in it, which could hide lines, or type. So both streams take them out of all text. Only consoles, which draw
tables and progress (`console.py`), write past that, and take them out of what they draw.

A stream may be closed, full, or read by nobody: none of these changes what a command's exit status says.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from typing import TextIO

import typer

from harness.foreign import printable


class Plain(io.TextIOBase):
    """A stream on which text arrives without what a terminal would obey. stream: the stream below.

    Letters that the stream's encoding lacks are written as numbers.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write the text."""
        return self.stream.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        """Write each text."""
        self.stream.writelines(map(printable, lines))

    def flush(self) -> None:
        """Write what is still held back."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The number of the stream's file."""
        return self.stream.fileno()

    def writable(self) -> bool:
        """Whether text can be written."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What becomes of letters that the encoding lacks."""
        return self.stream.errors


def guard() -> None:
    """Have everything that this process prints from now on go through a Plain stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:
            setattr(sys, name, Plain(stream))


def open_all() -> None:
    """Open the streams that are closed, onto nothing.

    Otherwise the next file that is opened has the number of a stream, and what a library prints goes into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(opened, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def tell(text: str) -> None:
    """Print on standard error, if anything can be printed there."""
    try:
        typer.echo(text, err=True)
    except OSError:
        silence()


def silence() -> None:
    """Turn streams that can't be written to nothing, since Python writes what is left of them at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
