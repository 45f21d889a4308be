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

MARK = "harness_mark"
"""The kernel that is launched before the calls of a case, where a profiler watches: its grid has as many blocks as the
case has number, counted from 1. So a list of kernels tells which case each belongs to."""


class Tool(Protocol):
    """What the file of a tool offers.

    SUMMARY: what it is good for, in one line. SUFFIXES: of the files that `read` understands, the tool's own first.
    """

    SUMMARY: str
    SUFFIXES: tuple[str, ...]

    def refuse(self) -> None:
        """Raise MachineError if the tool can't be used here: it is missing, or too old."""

    def command(self, target: Sequence[str], base: Path) -> list[str]:
        """The command line that runs `target` under the tool. It leaves files whose names begin with `base`."""

    def failure(self, output: str) -> MachineError | None:
        """What a run that failed means, by what the tool wrote, and what to do; None if that isn't known."""

    def read(self, file: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
        """What the tool found about each case.

        cases: ids, in the order in which they ran; empty for a file that was made elsewhere, where the file must tell
        them. calls: of each case that the tool watched. Raises UsageError for a file that it can't read.
        """


@cache
def tools() -> dict[str, Tool]:
    """Every tool by name. Raises UsageError for a file of this folder that isn't one."""
    found = discover("harness.profile", ["SUMMARY", "SUFFIXES", "refuse", "command", "failure", "read"])
    return {name: cast(Tool, module) for name, module in found.items()}
