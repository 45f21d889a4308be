"""Standard streams that are closed, full, or read by nobody: none of them changes what a command's exit status says."""

from __future__ import annotations

import os
import sys

import typer


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
