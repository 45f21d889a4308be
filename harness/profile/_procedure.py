"""Runs a plan's cases under a tool, in a process of its own, and reads what the tool found."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import devices, store
from harness.errors import MachineError, UsageError
from harness.model import Attachment, Job
from harness.processes import lock, python
from harness.profile import CALLS, CALLS_OF_RANKS, Tool, Ways, _request, tools
from harness.profile._request import CaseRan, ProfileRequest

FOLDER = "profile"
"""The folder of a run that has the files of profilers."""
_LOOK_EVERY = 0.2  # seconds between two looks at the answers
_SLOWER = 3.0  # how many times as long as when it is timed a case may take under a tool
_LAST_LINES = 12  # of a tool's output that an error repeats
_TARGET, _TEAM = "harness.profile._target", "harness.profile._team"
_WRITES_TRACES = ("torch",)  # tools that are a part of the process which they watch

Told = Callable[[CaseRan, str], None]
"""Called for each case that has ended under the tool, with which of several runs it was, such as '2/2'; else ''."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """What a tool found, how each case ended under it, and what went wrong with the tool itself.

    remarks: what went wrong once everything had been recorded, so that nothing is missing.
    """

    attachments: tuple[Attachment, ...] = ()
    cases: tuple[CaseRan, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A start of the tool. base: the beginning of the names of its files. commands: in order."""

    base: Path
    request: ProfileRequest
    commands: tuple[tuple[str, ...], ...]

    @property
    def request_file(self) -> Path:
        return self.base.with_name(f"{self.base.name}{_request.REQUEST}")


def profile(  # noqa: PLR0913 - the command line passes all of it, by name
    name: str,
    jobs: Sequence[Job],
    *,
    device: str,
    plugins: Sequence[Path],
    folder: Path,
    told: Told,
    options: Mapping[str, int] | None = None,
    ranks: Sequence[int] = (),
    keep: Callable[[Sequence[Attachment]], None] = lambda _: None,
) -> Profiled:
    """Run the cases under the tool `name`, whose files go into `folder`/profile.

    A case that ends the process doesn't keep the cases after it from being run: they run in another process. options:
    the options that the tool was given. ranks: of cases of several devices, which are recorded; all if empty. keep:
    gets what was found as soon as it is known, so that nothing is lost with what comes later; after an interrupt, what
    a tool with a file a case has found until then. Raises MachineError if the tool can't be used here, or leaves
    nothing to read.
    """
    tool = tools()[name]
    tool.refuse()
    prepare = partial(prepared, name, device=device, plugins=plugins, folder=folder, options=options, ranks=ranks)
    # What runs under a tool would disturb whoever measures.
    most = max((job.case.world for job in jobs), default=0)
    with lock.held(devices.kinds()[device], range(most)):
        return _profile(tool, jobs, prepare, told, keep)


def _profile(
    tool: Tool,
    jobs: Sequence[Job],
    prepare: Callable[[Sequence[Job]], Part],
    told: Told,
    keep: Callable[[Sequence[Attachment]], None],
) -> Profiled:
    """Run the cases under the tool, in as many starts as it takes. prepare: gives the next start for some cases."""
    todo, found = [job for alike in of_one_world(jobs) for job in alike], Profiled()
    while todo:
        part = prepare(of_one_world(todo)[0])
        try:
            ran, outputs = _carried_out(part, tool, told)
        except KeyboardInterrupt:
            if Ways.of(tool).a_file_a_case:
                keep(_read(tool, part, _request.answers(_request.answers_file(part.request_file)), []))
            raise
        attachments = _read(tool, part, ran, outputs)
        keep(attachments)
        # A case that ended the process says itself what happened.
        told_of = outputs[ran[-1].status in ("crashed", "timeout") :]
        problems = [problem for output in told_of if (problem := output.problem(tool))]
        remarks: list[str] = []
        if problems and outputs[-1].code < 0 and _is_whole(part, ran, attachments):
            problems, remarks = [], [f"its process died after the last case, and nothing is missing: {problems[-1]}"]
        found = Profiled(
            (*found.attachments, *attachments),
            (*found.cases, *ran),
            (*found.problems, *problems),
            (*found.remarks, *remarks),
        )
        todo = todo[len(ran) :]
    return found


def _is_whole(part: Part, ran: Sequence[CaseRan], attachments: Sequence[Attachment]) -> bool:
    """Whether all cases ended well and were recorded by their own process, which has nothing left to write then."""
    recorded = {attachment.case for attachment in attachments}
    by_itself = bool(part.request.traces or part.request.tool)
    return by_itself and all(case.status == "ok" and case.case in recorded for case in ran)


def of_one_world(jobs: Sequence[Job]) -> list[list[Job]]:
    """The cases of equally many devices, which one start of a tool can run together, the fewest devices first."""
    worlds = sorted({job.case.world for job in jobs})
    return [[job for job in jobs if job.case.world == world] for world in worlds]


def prepared(  # noqa: PLR0913 - as above
    name: str,
    jobs: Sequence[Job],
    *,
    device: str,
    plugins: Sequence[Path],
    folder: Path,
    options: Mapping[str, int] | None = None,
    ranks: Sequence[int] = (),
) -> Part:
    """Write the request for these cases, and give the command lines that carry it out under the tool.

    jobs: cases of equally many devices. options: the options that the tool was given; the usual values stand for the
    rest. ranks: as in `profile`.
    """
    home = store.room(folder, FOLDER)
    base = next(_unused(home, name)).resolve()
    traces = str(base) if name in _WRITES_TRACES else ""
    files = tuple(str(plugin.resolve()) for plugin in plugins)
    several = any(job.case.world > 1 for job in jobs)
    calls = CALLS_OF_RANKS if several else CALLS
    request = ProfileRequest(device, files, tuple(jobs), calls, tuple(ranks), traces=traces)
    ways = Ways.of(tools()[name])
    if ways.running:
        request = replace(request, tool=name, options=ways.asked(options or {}), files=str(base))
    part = Part(base, request, ())
    _request.write(part.request, part.request_file)
    target = python.command(_TEAM if several else _TARGET, [str(part.request_file)])
    return replace(part, commands=tuple(map(tuple, tools()[name].commands(target, base))))


def shown(command: Sequence[str]) -> str:
    """The command line as a shell takes it, with the environment that it needs."""
    environment = python.environment()
    needed = (f"{name}={environment[name].rstrip()}" for name in ("HARNESS_IMPORTS", "PYTHONSAFEPATH"))
    return shlex.join(["env", *needed, *command])


def _unused(home: Path, name: str) -> Iterator[Path]:
    """Beginnings of names that no file in `home` has."""
    number = 1
    while True:
        base = home / f"{name}-{number}"
        if not any(home.glob(f"{base.name}[.-]*")):
            yield base
        number += 1


@dataclass(frozen=True, slots=True)
class _Output:
    """What a command wrote, where that lies, and its return code, negative for a signal. late: it was stopped."""

    text: str
    log: Path
    code: int
    late: bool = False

    @property
    def last(self) -> str:
        """The last lines, in one."""
        lines = [line.strip() for line in self.text.splitlines()[-_LAST_LINES:] if line.strip()]
        return " | ".join(lines) or f"it ended with {self.code} and without a word"

    def problem(self, tool: Tool) -> str:
        """What is wrong with the tool; '' if it ended well."""
        if not self.code or self.late:
            return ""
        failure = tool.failure(self.text)
        return f"{failure.message}; {failure.advice}" if failure else f"{self.last} (all of it: {self.log})"


def _carried_out(part: Part, tool: Tool, told: Told) -> tuple[list[CaseRan], list[_Output]]:
    """Run the commands. Gives the cases that ended in the first one, with the one that ended the process, if one did.

    Each later command runs the cases that ended well in the first one.
    """
    first, *later = part.commands
    every = len(part.commands)
    output, ran = _watched(first, 1, part, partial(_tell, told, 1, every))
    if len(ran) < len(part.request.jobs) and not (ran and ran[-1].status == "crashed"):
        ran = [*ran, _crashed(part.request.jobs[len(ran)], ran, tool, output)]
        _tell(told, 1, every, ran[-1])
    outputs = [output]
    good = tuple(case.number for case in ran if case.status == "ok")
    for number, command in enumerate(later, 2):
        if good:
            _request.write(replace(part.request, checked=True, numbers=good), part.request_file)
            _request.answers_file(part.request_file).unlink(missing_ok=True)
            outputs.append(_watched(command, number, part, partial(_tell, told, number, every))[0])
    return ran, outputs


def _tell(told: Told, number: int, every: int, ran: CaseRan) -> None:
    told(ran, f"{number}/{every}" if every > 1 else "")


def _watched(
    command: Sequence[str], number: int, part: Part, ended: Callable[[CaseRan], None]
) -> tuple[_Output, list[CaseRan]]:
    """Run a command; give its output and the cases that ended, each of which is told when it ends."""
    answers = _request.answers_file(part.request_file)
    log = part.base.with_name(f"{part.base.name}.{number}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=python.environment(),
            start_new_session=True,  # so that the tool and what it runs end together
        )
        try:
            late = not _followed(process, answers, ended, _patience(part))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    text = log.read_text(encoding="utf-8", errors="replace")
    return _Output(text, log, code, late), _request.answers(answers)


def _patience(part: Part) -> float:
    """Seconds without an answer after which a case counts as one that never ends. Tools are slow."""
    return _SLOWER * max(job.timing.timeout for job in part.request.jobs)


def _followed(
    process: subprocess.Popen[bytes], answers: Path, ended: Callable[[CaseRan], None], patience: float
) -> bool:
    """Tell each case that ends, until the process does. Gives False if no case ended for so many seconds."""
    seen, since, running = 0, time.monotonic(), True
    while running:
        running = process.poll() is None
        for ran in _request.answers(answers)[seen:]:
            ended(ran)
            seen, since = seen + 1, time.monotonic()
        if running:
            if time.monotonic() - since > patience:
                return False
            time.sleep(_LOOK_EVERY)
    return True


def _crashed(job: Job, before: Sequence[CaseRan], tool: Tool, output: _Output) -> CaseRan:
    """The case at which the process ended. Raises MachineError if it was the first one, and the tool was the reason."""
    if not before and (failure := tool.failure(output.text)):
        raise failure
    if output.late:
        return CaseRan(job.case.id, len(before) + 1, "timeout", "it didn't end under the tool")
    return CaseRan(job.case.id, len(before) + 1, "crashed", output.last)


def _read(tool: Tool, part: Part, ran: Sequence[CaseRan], outputs: Sequence[_Output]) -> list[Attachment]:
    """What the tool found of the cases that ended well, with the names of its files in the run's folder.

    Raises MachineError if it left nothing that can be read.
    """
    ids = [case.case if case.status == "ok" else "" for case in ran]
    if not any(ids):
        return []
    home = part.base.parents[1]
    try:
        found = tool.read(part.base, ids, part.request.calls)
    except UsageError as error:
        for output in outputs:
            if failure := tool.failure(output.text):
                raise failure from None
        told = f"{error.message}; the tool's last words: {outputs[-1].last}"
        raise MachineError(told, f"all of them are in {outputs[-1].log}") from None
    return [replace(one, files=tuple(str(Path(name).relative_to(home)) for name in one.files)) for one in found]
