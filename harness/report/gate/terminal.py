"""A gate run on a terminal: the table, worst first, then the findings, then one line that says how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gate.records import GateRun
from harness.report.gate import build
from harness.report.terminal import show

if TYPE_CHECKING:
    from rich.console import Console


def render(run: GateRun, console: Console) -> None:
    """Draw a gate run. The last line has the word for how it ended, the exit code and what it means."""
    show(build.screen(run), console)
