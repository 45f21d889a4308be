"""A run as files to read. One format a file, found by its name; a file that starts with `_` is a helper.

A format has `SUMMARY`, one line, and `write(run, folder) -> list[Path]`, which writes its files into the run's folder.
`terminal` draws on a console instead, so it isn't a format. Nothing here loads pandas or matplotlib until it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from harness.discover import discover
from harness.errors import MachineError, UsageError, nearest
from harness.model import Ceilings, Machine, Run


class Format(Protocol):
    """What a file in this folder offers."""

    SUMMARY: str

    def write(self, run: Run, folder: Path) -> list[Path]:
        """Write the run's files into `folder`, which exists. Gives their paths."""


def formats() -> dict[str, Format]:
    """Every format by name."""
    return _found()


def write(run: Run, folder: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Write the named formats of a run, or all, into its folder. Gives the paths written.

    Raises UsageError for an unknown format, and MachineError where the folder can't be written.
    """
    found = _found()
    unknown = [name for name in formats or () if name not in found]
    if unknown:
        raise UsageError(f"no report format named '{unknown[0]}'", nearest(unknown[0], found))
    with into(folder):
        return [path for name in formats or found for path in found[name].write(run, folder)]


def write_ceilings(machine: Machine, ceilings: Ceilings, folder: Path) -> list[Path]:
    """Write the ceilings alone, as a page, a table and a plot: peak.md, peak.csv, peak.svg, peak.png.

    Makes the folder. Raises MachineError where it can't be written.
    """
    from harness.report import _ceilings

    with into(folder):
        return _ceilings.write(machine, ceilings, folder)


@contextmanager
def into(folder: Path) -> Iterator[None]:
    """Make the folder; turn a full disk or a lack of permission into one sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        message = f"can't write the report: {error.filename or folder}: {error.strerror or error}"
        raise MachineError(message, "make room or choose a folder that can be written") from error


def _found() -> dict[str, Format]:
    return {
        name: cast(Format, module) for name, module in discover(f"{__name__}.formats", ["SUMMARY", "write"]).items()
    }
