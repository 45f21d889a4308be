"""The processes that measure one case together: started, asked, watched, and ended as one."""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from harness.errors import CompileError, HarnessError, MachineError, UsageError, shown
from harness.processes import messages, python
from harness.processes.messages import (
    ANOTHER_CODE,
    Confirm,
    Confirmed,
    Exchanged,
    Failed,
    LimitsMeasured,
    Measure,
    Measured,
    Progress,
    Question,
    Ready,
    Reply,
    Surveyed,
)
from harness.processes.rank import GRACE, Beginning, Meeting, Rank
from harness.processes.scratch import Scratch
from harness.processes.surroundings import Surroundings
from harness.processes.torchrun import RankHandle, leader

_START_LIMIT = 300.0
# Seconds between two looks at the processes. A death closes the pipe, which is noticed at once, unless a child of the
# dead process holds the pipe open.
_LOOK_EVERY = 0.5
_DEATH_LIMIT = 20.0  # seconds for a process with a closed pipe to end: the kernel may write its memory to a file first
_MOST_SAID = 300  # characters of what is wrong with a reply
_FRAME = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)
_WAITING = re.compile(r"/harness/ranks\.py$|/torch/distributed/")
_ERRORS = {error.exit_code: error for error in (UsageError, MachineError, CompileError)}

Report = Callable[[str, float], None]
Answer = TypeVar("Answer", Ready, Measured, LimitsMeasured, Surveyed, Exchanged, Confirmed, Progress)


EDITED = "leave the code as it is while it is measured, and start again; a run goes on by harness run --resume FOLDER"
"""Advice where two processes of one run have different codes."""


class LostError(Exception):
    """A team is dead: one of its processes died, or it took too long. `text` says how, with the last of stderr.

    stale: it gave the answer to an earlier question, so the question that it was asked isn't to blame.
    """

    def __init__(self, status: Literal["crashed", "timeout"], text: str, stale: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.stale = stale


class Team:
    """`size` ranks that measure together: every one gets each question and answers it. If one dies, all are killed."""

    def __init__(  # noqa: PLR0913 - what each process is started with
        self,
        device: str,
        plugins: Sequence[Path],
        size: int,
        root: Path | None = None,
        around: Surroundings | None = None,
        *,
        compiler: bool = False,
        waits: bool = False,
    ) -> None:
        """Start them. root: the folder whose `harness` they import; the parent's own unless told.

        around: what they see in place of what the parent sees. compiler: whether they load torch's compiler, too.
        waits: whether they load torch and no code that is measured, until `wait_until_ready` is called.
        """
        self.size = size
        self._waits = waits
        self.ready: Ready | None = None
        self._is_another = root is not None and root.resolve() != python.own_root()
        self._question: Question | None = None
        self._asked = 0
        self._ranks: list[RankHandle] = []
        leads = leader() if size > 1 else None
        one_host = leads.has_on_its_host(size) if leads else size > 1
        self._folder = Scratch("ranks") if one_host else None
        try:
            address = leads.address if leads and not self._folder else "127.0.0.1"
            folder = self._folder.path if self._folder else None
            meeting = Meeting(size, size, address, _free_port(address), folder)
            begin = Beginning(device, tuple(plugins), meeting, root, around=around, compiler=compiler, waits=waits)
            for number in range(size):
                self._ranks.append(leads.rank(number, begin) if leads else Rank(number, begin))
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether every rank is."""
        return all(rank.status is None for rank in self._ranks)

    def wait_until_loaded(self) -> None:
        """Wait until all have loaded torch, where they wait then. Raises as `wait_until_ready` does."""
        try:
            self._answers(Progress, _START_LIMIT)
        except BaseException:
            self.kill()
            raise

    def wait_until_ready(self) -> Ready:
        """Wait, once, until all are ready. Gives what each of them says of itself.

        Raises LostError, or the HarnessError that one of them reports, after which all are dead. It's a MachineError if
        they don't have the same code.
        """
        if self.ready is None:
            try:
                for rank in self._ranks if self._waits else ():
                    rank.send(b"\n")
                said = set(self._answers(Ready, _START_LIMIT).values())
                if len(said) > 1:
                    codes = " and ".join(sorted(f"{ready.root} ({ready.digest[:12]})" for ready in said))
                    raise MachineError(f"the measuring processes have different codes: {codes}", EDITED)
                self.ready = said.pop()
            except BaseException:
                self.kill()
                raise
        return self.ready

    def ask(
        self, question: Question, kind: type[Answer], limit: float, report: Report | None = None
    ) -> dict[int, Answer]:
        """The answers by rank, in the order in which they came, within `limit` seconds.

        The first measurement that isn't 'ok' gives the other ranks a moment to answer, too; ranks that don't are left
        out, and all are dead. report: gets the progress of rank 0. Raises LostError, or the HarnessError that a rank
        answers with, after which all are dead.
        """
        self._asked += 1
        self._question = replace(question, number=self._asked)
        line = messages.encode(self._question)
        for rank in self._ranks:
            rank.send(line)
        try:
            return self._answers(kind, limit, report)
        except (LostError, HarnessError):
            self.kill()
            raise

    def confirm(self, limit: float) -> None:
        """See that all ranks still answer, and have given no more than one answer to the last question.

        A variant may write an answer of its own, and end its process or go on. Raises LostError for that. Another
        revision isn't asked, which may not know the question.
        """
        if not self._is_another:
            self.ask(Confirm(), Confirmed, limit)

    def close(self) -> None:
        """End the processes by closing their inputs: a process ends when it can get no more questions."""
        for rank in self._ranks:
            rank.close_input()
        self._wait()
        self.kill()

    def kill(self) -> None:
        """End them and their children at once.

        All are told before any is waited for: a driver may take seconds to give back the memory of one GPU.
        """
        for rank in self._ranks:
            rank.begin_kill()
        for rank in self._ranks:
            rank.kill()
        if self._folder:
            self._folder.remove()

    def _answers(self, kind: type[Answer], limit: float, report: Report | None = None) -> dict[int, Answer]:
        deadline = time.monotonic() + limit
        answers: dict[int, Answer] = {}
        hurried = False
        while waiting := [rank for rank in self._ranks if rank.number not in answers]:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            select.select(waiting, [], [], min(left, _LOOK_EVERY))
            for rank in waiting:
                may_say_more = rank.receive()
                found = [self._answer(rank, line, kind, report) for line in rank.lines()]
                if said := [answer for answer in found if answer]:
                    answers[rank.number] = self._only(rank, said)
                if not may_say_more and rank.number not in answers:
                    raise LostError("crashed", self._fates(rank))
            if not hurried and any(map(_is_bad, answers.values())):
                hurried = True
                deadline = min(deadline, time.monotonic() + GRACE)
        if waiting and not hurried:
            raise LostError("timeout", self._overdue(waiting, limit))
        if waiting:
            self.kill()
        return answers

    def _only(self, rank: RankHandle, answers: Sequence[Answer]) -> Answer:
        """The answer of a rank. Raises LostError if there are two."""
        if len(answers) > 1:
            raise LostError("crashed", f"rank {rank.number} answered question {self._asked} twice")
        return answers[0]

    def _answer(self, rank: RankHandle, line: bytes, kind: type[Answer], report: Report | None) -> Answer | None:
        """The answer in a line, None if it is progress. Raises what the line reports, or what is wrong with it.

        What can't be read has most likely been written by the case, on a pipe that isn't its own, or holds a figure of
        the case that is none. Only another revision may mean something by it.
        """
        try:
            reply = messages.decode_reply(line)
        except ValueError as error:
            if not self._is_another or not _has_unknown_kind(error):
                read, why = shown(line.decode(errors="backslashreplace")), " ".join(str(error).split())[:_MOST_SAID]
                raise LostError(
                    "crashed", self._join([(rank, f"answered what can't be read: {read}\n{why}")])
                ) from error
            raise MachineError(
                f"a measuring process sent a message that this harness can't read: {error}", ANOTHER_CODE
            ) from error
        if reply.number != self._asked or _is_of_another_case(reply, self._question):
            which = f"question {reply.number}" if reply.number != self._asked else "another question"
            text = f"rank {rank.number} answered {which}, not {self._asked}"
            raise LostError("crashed", text, stale=reply.number <= self._asked)
        if isinstance(reply, kind):
            return reply
        match reply:
            case Progress(text, share):
                if report and rank.number == 0:
                    report(text, share)
                return None
            case Failed(message, advice, exit_code):
                raise _ERRORS[exit_code](message, advice)
            case _:
                raise LostError("crashed", f"rank {rank.number} answered '{reply.kind}' to question {self._asked}")

    def _fates(self, closed: RankHandle) -> str:
        """How each dead rank ended, with the last of its standard error; ranks killed by a signal first.

        closed: the rank whose pipe closed, so it is dead or about to be.
        """
        closed.wait(time.monotonic() + _DEATH_LIMIT)
        self._wait()
        dead = sorted((rank for rank in self._ranks if rank.status is not None), key=lambda rank: rank.status or 0)
        return self._join([(rank, rank.fate) for rank in dead] or [(closed, "closed its pipe of replies")])

    def _overdue(self, waiting: Sequence[RankHandle], limit: float) -> str:
        """What the ranks that haven't answered were doing when their time was up.

        Ranks that waited for others come last: most likely they are late because of the rank that comes first.
        """
        for rank in waiting:
            rank.interrupt()
        self._wait(waiting)
        late = sorted(waiting, key=lambda rank: _waited_for_others(rank.tail()))
        return self._join([(rank, f"took longer than {limit:g} s") for rank in late])

    def _wait(self, ranks: Sequence[RankHandle] | None = None) -> None:
        """Give ranks, all of them unless told, a moment to end by themselves."""
        deadline = time.monotonic() + GRACE
        for rank in self._ranks if ranks is None else ranks:
            rank.wait(deadline)

    def _join(self, fates: list[tuple[RankHandle, str]]) -> str:
        names = [f"rank {rank.number}: " if self.size > 1 else "" for rank, _ in fates]
        return "\n".join(
            f"{name}{fate}\n{rank.tail()}".rstrip() for name, (rank, fate) in zip(names, fates, strict=True)
        )


def _waited_for_others(tail: str) -> bool:
    """Whether a rank's stack, innermost frame first, ends in what ranks exchange, or in torch's communication."""
    innermost = _FRAME.search(tail)
    return innermost is not None and _WAITING.search(innermost[1]) is not None


def _is_of_another_case(reply: Reply, question: Question | None) -> bool:
    """Whether the reply is the measurement of another case, or of another process index, than the question's."""
    if not (isinstance(reply, Measured) and isinstance(question, Measure)):
        return False
    found = reply.measurement
    return (found.case, found.process) != (question.job.case, question.process)


def _has_unknown_kind(error: ValueError) -> bool:
    """Whether a line is a message of a kind that isn't known here, which a later revision may have."""
    return isinstance(error, ValidationError) and error.errors()[0]["type"] == "union_tag_invalid"


def _is_bad(answer: Reply) -> bool:
    """Whether the answer isn't 'ok': then the other ranks may wait for this one in vain."""
    return isinstance(answer, Measured) and answer.measurement.status != "ok"


def _free_port(address: str) -> int:
    """A port of this host that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1" if address == "127.0.0.1" else "", 0))
        port: int = probe.getsockname()[1]
        return port
