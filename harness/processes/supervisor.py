"""Measuring in processes that may die: which processes measure the next case, and when new ones are started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from harness import devices, source
from harness.errors import HarnessError, MachineError, brief
from harness.limits import Needs
from harness.model import Job, Limits, Measurement
from harness.processes import python
from harness.processes.exchange import Step
from harness.processes.messages import (
    ANOTHER_CODE,
    VERSION,
    Exchange,
    Exchanged,
    LimitsMeasured,
    Measure,
    Measured,
    MeasureLimits,
    MeasureLimitsAgain,
    SurveyCode,
    Surveyed,
)
from harness.processes.surroundings import Surroundings
from harness.processes.team import EDITED, LostError, Report, Team
from harness.processes.torchrun import leader

_NOT_BELIEVED = "the answer isn't believed, since the case may have written it itself"
_NAMES_A_RANK = re.compile(r"rank \d+: ")
_LIMITS_LIMIT = 900.0
_SURVEY_LIMIT = 60.0
_NO_LIBRARY = ("ImportError: ", "ModuleNotFoundError: ", "OSError: ")


def _not_started(text: str) -> MachineError:
    """What is told of a process that doesn't start: no frames where a library can't be imported."""
    last = re.split(r"^  .*\n", text, flags=re.MULTILINE)[-1]
    if last.startswith(_NO_LIBRARY):
        advice = "mend its installation until python -c 'import torch' works; 'harness env' has the packages' versions"
        return MachineError(f"the measuring process doesn't start: {last}", advice)
    return MachineError(f"the measuring process doesn't start: {text}", "run 'harness env'")


class Workers:
    """Measures case by case, in new processes if the last case failed. A context manager.

    root: a folder with another revision of the harness, whose ops and kernels are to be measured. digest: the hash that
    the code of every process must have, as `source.digest` gives it; "" for the digest of the code as it lies there
    now. around: what the processes see in place of what this process sees.
    """

    def __init__(
        self,
        device: str,
        plugins: Sequence[Path] = (),
        root: Path | None = None,
        digest: str = "",
        around: Surroundings | None = None,
    ) -> None:
        self._device = device
        self._plugins = tuple(plugins)
        self._root = (root or python.own_root()).resolve()
        # Another revision may make its hash in another way. Then the first process's hash stands for all of them.
        self._digest = digest or (source.digest(self._plugins) if self._root == python.own_root() else "")
        self._around = around
        self._team: Team | None = None
        self._next: Team | None = None

    def measure(self, job: Job, process: int = 0, *, timed: bool = True) -> Measurement:
        """The job's measurement; the death of a process is one too, as 'crashed' or 'timeout'.

        timed: False to check the case only, which gives no samples.

        Raises MachineError if no process can be started, and what the processes report of the plug-ins and the device.
        """
        if refused := too_few(self._device, job.case.world):
            return Measurement(job.case, "unsupported", error=refused, process=process)
        try:
            team, answers = self._ask(job, process, timed)
        except LostError as lost:
            return Measurement(job.case, lost.status, error=lost.text, process=process)
        measurement = _joined(answers, team.size)
        # After a failure, the ranks of a team may be at different places. What can't be run no rank has begun.
        if answers[0].leaving if team.size == 1 else measurement.status not in ("ok", "unsupported"):
            self.restart()
        return measurement

    def _ask(self, job: Job, process: int, timed: bool, again: bool = True) -> tuple[Team, dict[int, Measured]]:
        """The answers of a team. One that answers an earlier question has forked: a new one is asked once more."""
        team = self._ready(job.case.world)
        try:
            answers = team.ask(Measure(job, process, timed), Measured, job.timing.timeout)
        except LostError as lost:
            self._team = None
            if lost.stale and again:
                return self._ask(job, process, timed, again=False)
            raise
        if all(answer.measurement.status == "ok" for answer in answers.values()):
            try:
                team.confirm(job.timing.timeout)
            except LostError as lost:
                self._team = None
                raise LostError("crashed", f"{_NOT_BELIEVED}: {lost.text}") from lost
        return team, answers

    def limits(self, needs: Needs, report: Report, fresh: bool = False) -> Limits:
        """What the machine can do, as far as the needs ask for it. fresh: measure anew, whatever was measured earlier.

        Raises as `measure` does, and MachineError if the process is lost.
        """
        return self._limits(MeasureLimits(needs, fresh), report)

    def limits_again(self, start: Limits, report: Report) -> Limits:
        """The limits that the start of a run measured, with `end` filled in. Raises as `limits` does."""
        return self._limits(MeasureLimitsAgain(start), report)

    def survey(self, files: Sequence[Path] = (), jobs: Sequence[Job] = ()) -> Surveyed:
        """The jobs of each scenario file as this code understands it, and which of `jobs` it knows.

        A process that listens tells which files it has used until now. Raises as `limits` does.
        """
        team = self._ready(1)
        question = SurveyCode(tuple(map(str, files)), tuple(jobs))
        try:
            return team.ask(question, Surveyed, _SURVEY_LIMIT)[0]
        except LostError as lost:
            self._team = None
            raise MachineError(f"the scenarios can't be read: {lost.text}", "run 'harness env'") from lost

    def exchange(self, step: Step, job: Job, folder: Path) -> tuple[str, str]:
        """(wrong, unable): what is wrong with the job's outputs, why this step of judging them can't be taken.

        The first of several ranks that tells something counts. The death of a process is a reason too. Raises as
        `measure` does.
        """
        team = self._ready(job.case.world)
        try:
            answers = team.ask(Exchange(step, job, str(folder)), Exchanged, job.timing.timeout)
        except LostError as lost:
            self._team = None
            return "", brief(lost.text)
        told = [(answers[rank].wrong, answers[rank].unable) for rank in sorted(answers)]
        wrong, unable = (next(filter(None, texts), "") for texts in zip(*told, strict=True))
        return wrong, unable

    def begin(self, size: int = 1) -> None:
        """Start `size` processes ahead of their turn, without waiting. They load torch, but don't touch the device."""
        if self._team is None:
            self._team = self._spawn(size)

    def load(self) -> None:
        """Start a process that loads torch, without waiting, and no code of its side before it is asked anything."""
        if self._team is None:
            self._team = self._spawn(1, waits=True)

    def wait_until_loaded(self) -> None:
        """Wait until the process that `load` has started has done so. If it can't, another one is started later."""
        if self._team:
            with suppress(LostError):
                self._team.wait_until_loaded()

    def begin_next(self, *, compiler: bool = False) -> None:
        """Start the process that comes after the next `restart`, as `begin` does, while the current ones measure.

        compiler: whether it loads torch's compiler, too. Without that its first compiled case loads the compiler.
        """
        if self._next is None:
            self._next = self._spawn(1, compiler)

    def restart(self) -> None:
        """Let the next question go to new processes."""
        if self._team:
            self._team.close()
        self._team, self._next = self._next, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for team in filter(None, (self._team, self._next)):
            if kind:
                team.kill()
            else:
                team.close()

    def _limits(self, question: MeasureLimits | MeasureLimitsAgain, report: Report) -> Limits:
        team = self._ready(1)
        try:
            return team.ask(question, LimitsMeasured, _LIMITS_LIMIT, report)[0].limits
        except LostError as lost:
            self._team = None
            raise MachineError(f"the limits can't be measured: {lost.text}", "run 'harness env'") from lost

    def _ready(self, size: int) -> Team:
        """A team of `size` living processes."""
        if not _serves(self._team, size):
            self.restart()
        if not self._team or not _serves(self._team, size):
            self.restart()  # the process that was begun for the next turn is dead, or is one where several are needed
            self._team = self._spawn(size)
        try:
            self._check(self._team)
        except LostError:
            # A single failure may have passed by now, such as a port that another program took first.
            self._team = self._spawn(size)
            try:
                self._check(self._team)
            except LostError as lost:
                self._team = None
                raise _not_started(lost.text) from lost
        return self._team

    def _spawn(self, size: int, compiler: bool = False, *, waits: bool = False) -> Team:
        return Team(self._device, self._plugins, size, self._root, self._around, compiler=compiler, waits=waits)

    def _check(self, team: Team) -> None:
        """Wait until the team is ready. Raises MachineError if its code is too old, or isn't the one to measure."""
        try:
            ready = team.wait_until_ready()
        except HarnessError:
            self._team = None
            raise
        if ready.protocol != VERSION:
            spoken = f"protocol {ready.protocol}" if ready.protocol else "a protocol without a number"
            raise MachineError(
                f"the harness in {ready.root or self._root} speaks {spoken} with its measuring processes, "
                f"this one protocol {VERSION}",
                ANOTHER_CODE,
            )
        if Path(ready.root).resolve() != self._root:
            raise MachineError(
                f"the measuring process imported the harness in {ready.root}, not that in {self._root}",
                "find what changes sys.path when Python starts: sitecustomize, usercustomize or a .pth file",
            )
        self._digest = self._digest or ready.digest
        if ready.digest != self._digest:
            raise MachineError(
                f"the code in {self._root}, or a plug-in, isn't what it was when the run began "
                f"(hash {ready.digest[:12] or 'unknown'}, at first {self._digest[:12]})",
                EDITED,
            )


def _serves(team: Team | None, size: int) -> bool:
    return team is not None and team.size == size and team.alive


def too_few(kind: str, world: int) -> str | None:
    """Why a case of so many ranks can't run on devices of this kind, before any process is started; None if it can."""
    if leads := leader():
        enough = world <= leads.size
        return None if enough else f"needs {world} devices, torchrun has started {leads.size} processes"
    return devices.too_few(devices.kinds()[kind], world) if world > 1 else None


def _joined(answers: dict[int, Measured], size: int) -> Measurement:
    """One measurement of all ranks' answers: rank 0's if all are 'ok', else a bad one, with its rank in the error."""
    bad = {rank: answer.measurement for rank, answer in answers.items() if answer.measurement.status != "ok"}
    if not bad:
        return answers[0].measurement
    # A rank that leaves has raised the error itself. If none leaves, the first answer says as much as the other
    # answers.
    blamed = next((rank for rank in bad if answers[rank].leaving), next(iter(bad)))
    found = bad[blamed]
    # What the ranks exchange about an error names the rank already.
    if size == 1 or _NAMES_A_RANK.match(found.error or ""):
        return found
    return replace(found, error=f"rank {blamed}: {found.error}")
