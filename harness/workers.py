"""Measuring in processes that may die: who measures the next case, and when a new process takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from harness.errors import MachineError
from harness.model import Ceilings, Job, Measurement
from harness.protocol import Measure, MeasureCeilings, Measured, Result
from harness.team import LostError, Report, Team

_CEILINGS_LIMIT = 900.0


class Workers:
    """Measures case by case, in new processes wherever the last ones can't be trusted. A context manager."""

    def __init__(self, device: str, plugins: Sequence[Path] = ()) -> None:
        self._device = device
        self._plugins = tuple(plugins)
        self._team: Team | None = None

    def measure(self, job: Job, process: int = 0) -> Measurement:
        """The job's measurement; the death of a worker is one too, as 'crashed' or 'timeout'.

        Raises MachineError if no worker can be started, and what the workers report of the plug-ins and the device.
        """
        team = self._ready(job.ranks)
        try:
            answer = team.ask(Measure(job, process), Result, job.timing.timeout)
        except LostError as lost:
            self._team = None
            return Measurement(job.case, lost.status, error=lost.text, process=process)
        if not answer.leaving:
            return answer.measurement
        # Rank 0 may only have noticed that another rank is gone.
        error = team.epitaph() if job.ranks > 1 else answer.measurement.error
        self.restart()
        return replace(answer.measurement, error=error)

    def ceilings(self, report: Report, start: Ceilings | None = None) -> Ceilings:
        """What the memory can do; given what the start of a run measured, the same with `end` filled in.

        Raises as `measure` does, and MachineError if the worker is lost.
        """
        team = self._ready(1)
        try:
            return team.ask(MeasureCeilings(start), Measured, _CEILINGS_LIMIT, report).ceilings
        except LostError as lost:
            self._team = None
            raise MachineError(f"the ceilings can't be measured: {lost.text}", "run 'harness env'") from lost

    def restart(self) -> None:
        """Let the next request go to new processes."""
        if self._team:
            self._team.dismiss()
            self._team = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._team and kind:
            self._team.kill()
        elif self._team:
            self._team.dismiss()

    def _ready(self, ranks: int) -> Team:
        """Living workers, that many."""
        if self._team and self._team.size == ranks and self._team.alive:
            return self._team
        self.restart()
        try:
            self._team = self._start(ranks)
        except LostError:
            # Once may be bad luck, such as a port that somebody else took first.
            try:
                self._team = self._start(ranks)
            except LostError as lost:
                raise MachineError(f"the measuring process doesn't start: {lost.text}", "run 'harness env'") from lost
        return self._team

    def _start(self, ranks: int) -> Team:
        return Team(self._device, self._plugins, ranks)
