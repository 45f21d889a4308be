"""Progress of a run on standard error: on a terminal a bar with the time left, elsewhere a line for each case."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness import metrics
from harness.model import Job, Limits, Measurement

_ESTIMATE_OVER = 600.0


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

    def note(self, text: str) -> None:
        """Print something that isn't about a case."""
        self._console.print(text, markup=False, soft_wrap=True)

    def started(self, job: Job, process: int) -> None:
        """Print nothing: the line of a case is printed when the case is done."""

    def finished(self, measurement: Measurement) -> None:
        """Print the case and its result."""
        self._done += 1
        self.note(f"[{self._done}/{self._total}] {outcome(measurement, self._limits)}")


class Bar(Lines):
    """A bar with the current case. Cases that failed are printed above it and stay."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            TextColumn("left  {task.description}"),
            console=console,
            transient=True,
            # Cases take very different times, so the estimate of the time left needs more than the last half minute.
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
        """Count one more measurement as done."""
        self._progress.advance(self._task)

    def finished(self, measurement: Measurement) -> None:
        self.advance()
        if measurement.status != "ok":
            super().note(outcome(measurement, None))


def follow(console: Console) -> Lines:
    """The observer that suits the console."""
    return Bar(console) if console.is_terminal else Lines(console)


def outcome(measurement: Measurement, limits: Limits | None) -> str:
    """A case and its result, in one line."""
    if measurement.time is None:
        reason = (measurement.error or "").strip().splitlines()
        return f"{measurement.case.id} {measurement.status.replace('_', ' ')}" + (f": {reason[0]}" if reason else "")
    subject = metrics.Subject.of(measurement, limits)
    parts = [measurement.case.id]
    for metric in metrics.METRICS.values():
        value = metric.value(subject)
        if metric.keep == metrics.ALWAYS and value is not None:
            # A value has its unit, so a head that is only the unit says nothing new.
            parts.append(metric.written(value) + ("" if "{unit}" in metric.head else f" {metric.head}"))
    parts += [f"[{warning.code}]" for warning in measurement.warnings]
    return "  ".join(parts)
