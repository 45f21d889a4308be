"""Consoles, on which tables and progress are drawn."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from harness.cli.streams import Plain
from harness.foreign import printable

_PIPE_WIDTH = 140


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process with 1, which here means that a gate failed.
        raise BrokenPipeError

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """The segments of what is drawn. Only the console's own control characters are in them, none of a text's."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def open_console(*, err: bool = False) -> Console:
    """A console on standard output or standard error. Rich handles NO_COLOR, TERM and COLUMNS itself."""
    stream = sys.stderr if err else sys.stdout
    # Rich takes a pipe to be 80 columns wide, which no table of results fits into.
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    below = stream.stream if isinstance(stream, Plain) else None
    # Names and errors may hold brackets and colons, which aren't meant for Rich.
    return _Console(file=below, stderr=err, highlight=False, markup=False, emoji=False, width=fixed)
