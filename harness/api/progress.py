"""Progress of a run in a notebook, or on a terminal: one line, which is written anew. Elsewhere nothing is shown."""

from __future__ import annotations

import sys
from html import escape
from typing import Any, Self

from harness import units
from harness.model import Job, Limits, Measurement


class Shown:
    """Shows which case is being measured, and how many are done."""

    def __init__(self) -> None:
        self._handle = _notebook_display()
        self._is_terminal = self._handle is None and sys.stderr.isatty()
        self._total = self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(f"{units.plural(self._done, 'measurement')} done")
        if self._is_terminal:
            sys.stderr.write("\n")

    def planned(self, total: int, done: int) -> None:
        """The run has `total` measurements, of which `done` exist already."""
        self._total, self._done = total, done

    def note(self, text: str, share: float | None = None) -> None:
        """Show what takes time besides cases."""
        self._show(text if share is None else f"{text} ({units.percent(share, 0)})")

    def limited(self, limits: Limits) -> None:
        """Show nothing: results have their share of the limits."""

    def started(self, job: Job, process: int) -> None:
        """Show the case."""
        again = f", process {process + 1}" if process else ""
        self._show(f"{self._done} of {self._total}: {job.case.id}{again}")

    def finished(self, measurement: Measurement) -> None:  # noqa: ARG002 - as an observer has it
        """Count the case."""
        self._done += 1

    def _show(self, text: str) -> None:
        if self._handle:
            self._handle.update({"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}, raw=True)
        elif self._is_terminal:
            sys.stderr.write(f"\r\x1b[2K{text[:100]}")
            sys.stderr.flush()


def _notebook_display() -> Any:
    """What a cell shows and can be changed, in a notebook; None elsewhere."""
    if "ipykernel" not in sys.modules:
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    show: Any = display
    return show({"text/plain": ""}, raw=True, display_id=True)
