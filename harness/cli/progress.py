"""Progress of a run on standard error: a line for each case that is done, and on a terminal a bar below them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from harness import metrics, units
from harness.cli.estimate import Estimate
from harness.errors import brief
from harness.model import FAILED, Job, Limits, Measurement

_SLOWEST, _FASTEST = 4.0, 0.25
"""How many times as long as estimated the rest of a run is taken to last at most, and at least."""


class Lines:
    """One line for each case that is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._limits: Limits | None = None
        self._total = 0
        self._done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, total: int, done: int) -> None:
        """The run has `total` measurements, of which `done` exist already."""
        self._total, self._done = total, done

    def limited(self, limits: Limits) -> None:
        """Keep the machine's limits: each case is printed with its share of them."""
        self._limits = limits

    def note(self, text: str, share: float | None = None) -> None:
        """Print what takes time besides cases."""
        self._say(f"{text} ({units.percent(share, 0)})" if share is not None else text)

    def started(self, job: Job, process: int) -> None:
        """Print nothing: the line of a case is printed when the case is done."""

    def finished(self, measurement: Measurement) -> None:
        """Print the case and its result."""
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {outcome(measurement, self._limits)}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class Errors(Lines):
    """Prints only cases that failed."""

    def note(self, text: str, share: float | None = None) -> None:
        """Print nothing."""

    def finished(self, measurement: Measurement) -> None:
        """Print the case if it failed."""
        if measurement.status in FAILED:
            self._say(outcome(measurement, self._limits))


class Bar(Lines):
    """Lines above a bar that shows what goes on, the time that passed and about how much is left.

    The bar counts seconds by the estimate, so that it moves with everything that takes time. Without an estimate it
    counts measurements.
    """

    def __init__(self, console: Console, estimate: Estimate | None = None) -> None:
        super().__init__(console)
        self._estimate = estimate
        self._progress = Progress(
            TextColumn("{task.fields[count]}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            TimeElapsedColumn(Column(no_wrap=True)),
            _Left(Column(no_wrap=True)),
            # The last to give way where the terminal is narrow.
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            transient=True,
            expand=True,  # by the last column, whose share of the width is all that the other columns leave
        )
        self._task = self._progress.add_task(
            "starting", total=estimate.total if estimate else None, count="", left=None, at=0.0
        )
        self._began = time.monotonic()
        self._before = 0
        """What was done already when the bar began, by which no pace can be told."""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def planned(self, total: int, done: int) -> None:
        super().planned(total, done)
        seconds = self._estimate.of(total - done) if self._estimate else None
        self._before = 0 if seconds else done
        if not seconds:
            self._began = time.monotonic()
        self._progress.update(self._task, total=seconds or total, completed=self._before)
        self._keep_pace()

    def limited(self, limits: Limits) -> None:
        super().limited(limits)
        self._reach(self._estimate.before if self._estimate else 0.0)

    def note(self, text: str, share: float | None = None) -> None:
        self._progress.update(self._task, description=escape(text))
        if self._estimate and share is not None:
            self._reach(self._estimate.start + share * self._estimate.limits)

    def started(self, job: Job, process: int) -> None:
        again = f" (process {process + 1})" if process else ""
        self._progress.update(self._task, description=escape(job.case.id + again))

    def advance(self) -> None:
        """Count one more measurement as done."""
        self._done += 1
        self._progress.advance(self._task, self._estimate.each if self._estimate else 1)
        self._keep_pace()

    def finished(self, measurement: Measurement) -> None:
        self.advance()
        self._say(f"[{self._done}/{self._total}] {outcome(measurement, self._limits)}")

    @property
    def _count(self) -> str:
        return f"{self._done}/{self._total}"

    def _reach(self, seconds: float) -> None:
        if seconds > self._progress.tasks[0].completed:
            self._progress.update(self._task, completed=seconds)
        self._keep_pace()

    def _keep_pace(self) -> None:
        """Say how long the rest takes if it goes on as it went: by the same factor to the estimate as until now.

        Without an estimate, by the time of a measurement until now, as soon as one is done.
        """
        now, task = time.monotonic(), self._progress.tasks[0]
        pace = (now - self._began) / (task.completed - self._before) if task.completed > self._before else None
        if self._estimate:
            pace = min(_SLOWEST, max(_FASTEST, pace or 1.0))
        left = None if pace is None else ((task.total or 0.0) - task.completed) * pace
        self._progress.update(self._task, count=self._count, left=left, at=now)


class _Left(ProgressColumn):
    """About how long the rest takes; nothing where nobody knows."""

    def render(self, task: Task) -> Text:
        if task.fields["left"] is None:
            return Text("")
        left = max(0.0, task.fields["left"] - (time.monotonic() - task.fields["at"]))
        return Text(f"~{timedelta(seconds=round(left))} left")


def follow(console: Console, estimate: Estimate | None = None, quiet: bool = False) -> Lines:
    """The observer that suits the console."""
    if quiet:
        return Errors(console)
    return Bar(console, estimate) if console.is_terminal else Lines(console)


def outcome(measurement: Measurement, limits: Limits | None) -> str:
    """A case and its result, in one line."""
    if measurement.time is None:
        reason = brief(measurement.error or "")
        return f"{measurement.case.id} {measurement.status.replace('_', ' ')}" + (f": {reason}" if reason else "")
    subject = metrics.Subject.of(measurement, limits)
    parts = [measurement.case.id]
    for metric in metrics.METRICS.values():
        value = metric.value(subject)
        if metric.keep == metrics.ALWAYS and value is not None:
            # A value has its unit, so a head that is only the unit says nothing new.
            parts.append(metric.written(value) + ("" if "{unit}" in metric.head else f" {metric.head}"))
    parts += [f"[{warning.code}]" for warning in measurement.warnings]
    return "  ".join(parts)
