"""Standard output and standard error: where text meets the terminal.

Text of others stands in what is printed: of stored runs, scenarios, plug-ins, profilers. A terminal obeys control
characters in it, which could hide lines, or type. So both streams take them out of all text. Only consoles, which draw
tables and progress (`console.py`), write past that, and take them out of what they draw.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import TextIO

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
