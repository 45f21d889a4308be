"""Consoles, on which tables and progress are drawn."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PIPE_WIDTH = 140


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process with 1, which here means that a gate failed.
        raise BrokenPipeError


def open_console(*, err: bool = False) -> Console:
    """A console on standard output or standard error. Rich handles NO_COLOR, TERM and COLUMNS itself."""
    stream = sys.stderr if err else sys.stdout
    # Rich takes a pipe to be 80 columns wide, which no table of results fits into.
    fixed = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _Console(stderr=err, highlight=False, width=fixed)
