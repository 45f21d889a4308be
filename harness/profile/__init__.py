"""Profilers: one file for each tool. A tool runs the cases of a plan once or a few times, and says what it saw of them.

The cases are prepared and checked as for timing, in a process of their own (`_target`), which runs under the tool. What
the tool found becomes attachments, which stand beside the results by the id of the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol, cast

from harness.discover import discover
from harness.errors import MachineError
from harness.model import Attachment

CALLS = 4
"""Calls of each case that a profiler sees. They rotate over sets of buffers, as timed calls do."""
MARK = "harness_mark"
"""The kernel that is launched before the calls of a case, where a profiler watches: its grid has as many blocks as the
case has number, counted from 1, and a block as many threads as the case has calls. So a list of kernels tells which
case each belongs to."""


class Tool(Protocol):
    """What the file of a tool offers.

    SUMMARY: what it is good for, in one line. SUFFIXES: of the files that `imported` understands.
    """

    SUMMARY: str
    SUFFIXES: tuple[str, ...]

    def refuse(self) -> None:
        """Raise MachineError if the tool can't be used here: it is missing, or too old."""

    def commands(self, target: Sequence[str], base: Path) -> list[list[str]]:
        """Command lines that run `target` under the tool, one after the other. Their files' names begin with `base`."""

    def failure(self, output: str) -> MachineError | None:
        """What a run that failed means, by what the tool wrote, and what to do; None if that isn't known."""

    def read(self, base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
        """What the tool found about each case, from the files that its commands left.

        cases: ids, in the order in which they ran; '' for one that ended without a call. calls: of each case.
        """

    def imported(self, file: Path, cases: Sequence[str]) -> list[Attachment]:
        """What the tool found, from a file of its own that was made elsewhere.

        cases: ids of those that the file may be about. Raises UsageError if it can't be read, or doesn't tell which
        of several cases it is about.
        """


@cache
def tools() -> dict[str, Tool]:
    """Every tool by name. Raises UsageError for a file of this folder that isn't one."""
    found = discover("harness.profile", ["SUMMARY", "SUFFIXES", "refuse", "commands", "failure", "read", "imported"])
    return {name: cast(Tool, module) for name, module in found.items()}
