"""Following a run on standard error: a bar with an estimate of what is left on a terminal, a line a case elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness import units
from harness.model import Ceilings, Job, Measurement

_ESTIMATE_OVER = 600.0


class Lines:
    """One line for each case that is done."""

    def __init__(self, console: Console, ceilings: Callable[[], Ceilings | None]) -> None:
        self._console = console
        self._ceilings = ceilings
        self._total = 0
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, total: int, done: int) -> None:
        """So many measurements in all; so many of them are there already."""
        self._total, self._done = total, done

    def note(self, text: str) -> None:
        """Say something that isn't about a case."""
        self._console.print(text, markup=False, soft_wrap=True)

    def started(self, job: Job, process: int) -> None:
        """Nothing: a line is printed once a case is done."""

    def finished(self, measurement: Measurement) -> None:
        """Print the case and what came of it."""
        self._done += 1
        self.note(f"[{self._done}/{self._total}] {outcome(measurement, self._ceilings())}")


class Bar(Lines):
    """A bar with the current case. What went wrong stays above it."""

    def __init__(self, console: Console, ceilings: Callable[[], Ceilings | None]) -> None:
        super().__init__(console, ceilings)
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("left  {task.description}"),
            console=console,
            transient=True,
            # Cases differ a lot; the estimate should look further back than half a minute.
            speed_estimate_period=_ESTIMATE_OVER,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def planned(self, total: int, done: int) -> None:
        self._progress.update(self._task, total=total, completed=done)

    def note(self, text: str) -> None:
        self._progress.update(self._task, description=escape(text))

    def started(self, job: Job, process: int) -> None:
        again = f" (process {process + 1})" if process else ""
        self._progress.update(self._task, description=escape(job.case.id + again))

    def advance(self) -> None:
        """One more is done."""
        self._progress.advance(self._task)

    def finished(self, measurement: Measurement) -> None:
        self.advance()
        if measurement.status != "ok":
            super().note(outcome(measurement, None))


def follow(console: Console, ceilings: Callable[[], Ceilings | None]) -> Lines:
    """The observer that suits the console. `ceilings` gives those of the run once they are measured."""
    return Bar(console, ceilings) if console.is_terminal else Lines(console, ceilings)


def outcome(measurement: Measurement, ceilings: Ceilings | None) -> str:
    """A case and what came of it, in one line."""
    time, work = measurement.time, measurement.work
    if time is None:
        reason = (measurement.error or "").strip().splitlines()
        return f"{measurement.case.id} {measurement.status.replace('_', ' ')}" + (f": {reason[0]}" if reason else "")
    parts = [measurement.case.id, units.seconds(time)]
    if work and work.moved:
        parts.append(units.rate(work.moved / time))
        if floor := ceilings.seconds(work) if ceilings else None:
            parts.append(f"{units.percent(floor / time, 0)} of ceiling")
    parts += [f"[{warning.code}]" for warning in measurement.warnings]
    return "  ".join(parts)
