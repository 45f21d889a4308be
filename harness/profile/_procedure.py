"""Runs a plan's cases under a tool, in a process of its own, and reads what the tool found."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.model import Attachment, Job
from harness.processes import python
from harness.profile import Tool, _request, tools
from harness.profile._request import CaseRan, ProfileRequest

FOLDER = "profile"
"""The folder of a run that has the files of profilers."""
_LOOK_EVERY = 0.2  # seconds between two looks at the answers
_LAST_LINES = 12  # of a tool's output that an error repeats
_TARGET = "harness.profile._target"
_WRITES_TRACES = ("torch",)  # tools that are a part of the process which they watch

Told = Callable[[CaseRan, str], None]
"""Called for each case that has ended under the tool, with which of several runs it was, such as '2/2'; else ''."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """What a tool found, and how each case ended under it."""

    attachments: tuple[Attachment, ...]
    cases: tuple[CaseRan, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A start of the tool. base: the beginning of the names of its files. commands: one after the other."""

    base: Path
    request: ProfileRequest
    commands: tuple[tuple[str, ...], ...]

    @property
    def request_file(self) -> Path:
        return self.base.with_name(f"{self.base.name}.request.json")


def profile(  # noqa: PLR0913 - the command line passes all of it, by name
    name: str, jobs: Sequence[Job], *, device: str, plugins: Sequence[Path], folder: Path, told: Told
) -> Profiled:
    """Run the cases under the tool `name`, whose files go into `folder`/profile.

    A case that ends the process doesn't keep the cases after it from being run: they run in another process. Raises
    MachineError if the tool can't be used here.
    """
    tool = tools()[name]
    tool.refuse()
    todo, found = list(jobs), Profiled((), ())
    while todo:
        part = prepared(name, todo, device=device, plugins=plugins, folder=folder)
        ran = _carried_out(part, tool, told)
        found = Profiled((*found.attachments, *_read(tool, part, ran)), (*found.cases, *ran))
        todo = todo[len(ran) :]
    return found


def prepared(name: str, jobs: Sequence[Job], *, device: str, plugins: Sequence[Path], folder: Path) -> Part:
    """Write the request for these cases, and give the command lines that carry it out under the tool."""
    home = folder / FOLDER
    home.mkdir(parents=True, exist_ok=True)
    base = next(_unused(home, name)).resolve()
    traces = str(base) if name in _WRITES_TRACES else ""
    part = Part(base, ProfileRequest(device, tuple(str(p.resolve()) for p in plugins), tuple(jobs), traces=traces), ())
    _request.write(part.request, part.request_file)
    target = python.command(_TARGET, [str(part.request_file)])
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


def _carried_out(part: Part, tool: Tool, told: Told) -> list[CaseRan]:
    """Run the commands. Gives the cases that ended in the first one, with the one that ended the process, if one did.

    Each later command runs the cases that ended well in the one before.
    """
    first, *later = part.commands
    every = len(part.commands)
    output, ran = _watched(first, part, partial(_tell, told, 1, every))
    if len(ran) < len(part.request.jobs) and not (ran and ran[-1].status == "crashed"):
        ran = [*ran, _crashed(part.request.jobs[len(ran)], ran, tool, output)]
        _tell(told, 1, every, ran[-1])
    # A case that ended the process is the last one.
    again = part.request.jobs[: len(ran) - (ran[-1].status == "crashed")]
    for number, command in enumerate(later, 2):
        if any(case.status == "ok" for case in ran):
            _request.write(replace(part.request, jobs=again, checked=True), part.request_file)
            _request.answers_file(part.request_file).unlink(missing_ok=True)
            _watched(command, part, partial(_tell, told, number, every))
    return ran


def _tell(told: Told, number: int, every: int, ran: CaseRan) -> None:
    told(ran, f"{number}/{every}" if every > 1 else "")


def _watched(command: Sequence[str], part: Part, ended: Callable[[CaseRan], None]) -> tuple[str, list[CaseRan]]:
    """Run a command; give its output and the cases that ended, each of which is told when it ends."""
    answers = _request.answers_file(part.request_file)
    log = part.base.with_name(f"{part.base.name}.log")
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
            for ran in _as_they_come(process, answers):
                ended(ran)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return log.read_text(encoding="utf-8", errors="replace"), _request.answers(answers)


def _as_they_come(process: subprocess.Popen[bytes], answers: Path) -> Iterator[CaseRan]:
    seen = 0
    running = True
    while running:
        running = process.poll() is None
        new = _request.answers(answers)[seen:]
        yield from new
        seen += len(new)
        if running:
            time.sleep(_LOOK_EVERY)


def _crashed(job: Job, before: Sequence[CaseRan], tool: Tool, output: str) -> CaseRan:
    """The case at which the process ended. Raises MachineError if it was the first one, and the tool was the reason."""
    if not before and (failure := tool.failure(output)):
        raise failure
    last = " | ".join(line.strip() for line in output.splitlines()[-_LAST_LINES:] if line.strip())
    return CaseRan(job.case.id, len(before) + 1, "crashed", last or "the process ended without a word")


def _read(tool: Tool, part: Part, ran: Sequence[CaseRan]) -> list[Attachment]:
    """What the tool found of the cases that ended well, with the names of its files in the run's folder."""
    ids = [case.case if case.status == "ok" else "" for case in ran]
    if not any(ids):
        return []
    home = part.base.parents[1]
    found = tool.read(part.base, ids, part.request.calls)
    return [replace(one, files=tuple(str(Path(name).relative_to(home)) for name in one.files)) for one in found]
