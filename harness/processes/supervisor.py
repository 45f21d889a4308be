"""Measuring in processes that may die: who measures the next case, and when a new process takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from harness.errors import HarnessError, MachineError
from harness.model import Ceilings, Job, Measurement
from harness.processes.messages import VERSION, Measure, MeasureCeilings, Measured, Result, Survey, Surveyed
from harness.processes.team import ANOTHER_CODE, LostError, Report, Team

_CEILINGS_LIMIT = 900.0
_SURVEY_LIMIT = 60.0


class Workers:
    """Measures case by case, in new processes wherever the last ones can't be trusted. A context manager.

    root: a folder with another revision of the harness, whose ops and kernels are to be measured.
    """

    def __init__(self, device: str, plugins: Sequence[Path] = (), root: Path | None = None) -> None:
        self._device = device
        self._plugins = tuple(plugins)
        self._root = root
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

    def survey(self, files: Sequence[Path], jobs: Sequence[Job]) -> Surveyed:
        """The jobs of each scenario file as this code understands it, and which of `jobs` it knows.

        Raises as `ceilings` does.
        """
        team = self._ready(1)
        try:
            return team.ask(Survey(tuple(map(str, files)), tuple(jobs)), Surveyed, _SURVEY_LIMIT)
        except LostError as lost:
            self._team = None
            raise MachineError(f"the scenarios can't be read: {lost.text}", "run 'harness env'") from lost

    def begin(self) -> None:
        """Start a process ahead of its turn, without waiting for it. It loads torch, but leaves the device alone."""
        if self._team is None:
            self._team = self._spawn(1)

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
        if not self._team or self._team.size != ranks or not self._team.alive:
            self.restart()
            self._team = self._spawn(ranks)
        try:
            self._meet(self._team)
        except LostError:
            # Once may be bad luck, such as a port that somebody else took first.
            self._team = self._spawn(ranks)
            try:
                self._meet(self._team)
            except LostError as lost:
                self._team = None
                raise MachineError(f"the measuring process doesn't start: {lost.text}", "run 'harness env'") from lost
        return self._team

    def _spawn(self, ranks: int) -> Team:
        return Team(self._device, self._plugins, ranks, self._root)

    def _meet(self, team: Team) -> None:
        """Wait until the team is ready. Raises MachineError if it runs other code than it should, or code too old."""
        try:
            ready = team.gather()
        except HarnessError:
            self._team = None
            raise
        if ready.protocol != VERSION:
            spoken = f"protocol {ready.protocol}" if ready.protocol else "a protocol without a number"
            raise MachineError(
                f"the harness in {ready.root or self._root} speaks {spoken} with its workers, this one {VERSION}",
                ANOTHER_CODE,
            )
        if self._root and Path(ready.root).resolve() != self._root.resolve():
            raise MachineError(
                f"the measuring process imported the harness in {ready.root}, not that in {self._root}",
                "look for what sets sys.path first: sitecustomize, usercustomize or a .pth file",
            )
