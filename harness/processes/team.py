"""The processes that measure one case together: started, asked, watched, and killed as one."""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

import harness
from harness.errors import CompileError, MachineError, UsageError
from harness.processes.messages import (
    Failed,
    Measured,
    Progress,
    Ready,
    Request,
    Result,
    Surveyed,
    decode_reply,
    encode,
)

_START_LIMIT = 300.0
_GRACE = 2.0
# A closed pipe tells of most deaths at once. The rest (another rank's, or a child that keeps the pipe) wait for a look.
_LOOK_EVERY = 0.5
_TAIL_LINES = 20
_TAIL_BYTES = 16384
_PATH_LENGTH = 256
_ERRORS = {error.exit_code: error for error in (UsageError, MachineError, CompileError)}

ANOTHER_CODE = "take a base that is nearer to the code to judge, or judge stored runs: harness gate REF RUN"
"""The advice where a worker of another revision of the harness isn't understood."""

Report = Callable[[str, float], None]
Answer = TypeVar("Answer", Ready, Result, Measured, Surveyed)


class LostError(Exception):
    """A team is dead: one of its processes died, or it took too long. `text` says how, with the last of stderr."""

    def __init__(self, status: Literal["crashed", "timeout"], text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Team:
    """`size` ranks that measure together. Rank 0 is listened to; the death of any is the death of all."""

    def __init__(self, device: str, plugins: Sequence[Path], size: int, root: Path | None = None) -> None:
        """Start them. root: the folder whose `harness` they import; the parent's own unless told."""
        self.size = size
        self.ready: Ready | None = None
        self._ranks: list[_Rank] = []
        replies, sink = os.pipe()
        self._replies = io.FileIO(replies)
        self._received = b""
        try:
            with os.fdopen(sink, "wb") as heard, Path(os.devnull).open("wb") as unheard:
                meeting = _meeting(size)
                for rank in range(size):
                    fd = (unheard if rank else heard).fileno()
                    self._ranks.append(_Rank(rank, _command(device, plugins, fd), fd, meeting, root))
        except BaseException:
            self.kill()
            raise

    def gather(self) -> Ready:
        """Wait, once, until all are ready.

        Raises LostError, or the HarnessError that they report, after which all are dead.
        """
        if self.ready is None:
            try:
                self.ready = self._answer(Ready, _START_LIMIT)
            except BaseException:
                self.kill()
                raise
        return self.ready

    @property
    def alive(self) -> bool:
        """Whether every rank is."""
        return all(rank.status is None for rank in self._ranks)

    def ask(self, request: Request, kind: type[Answer], limit: float, report: Report | None = None) -> Answer:
        """Rank 0's answer, within `limit` seconds; `report` gets its progress.

        Raises LostError, after which all ranks are dead, or the HarnessError that rank 0 answers with.
        """
        for rank in self._ranks:
            rank.send(encode(request))
        try:
            return self._answer(kind, limit, report)
        except LostError:
            self.kill()
            raise

    def dismiss(self) -> None:
        """End them gently: a worker leaves when nobody can ask it any more."""
        for rank in self._ranks:
            rank.hang_up()
        self._wait()
        self.kill()

    def kill(self) -> None:
        """End them and their children at once."""
        for rank in self._ranks:
            rank.kill()
        self._replies.close()

    def epitaph(self) -> str:
        """How each dead rank came to it, with the last of its standard error; those killed by a signal first."""
        self._wait()
        dead = sorted((rank for rank in self._ranks if rank.status is not None), key=lambda rank: rank.status or 0)
        return self._join([(rank, _fate(rank.status)) for rank in dead]) or "stopped answering"

    def _answer(self, kind: type[Answer], limit: float, report: Report | None = None) -> Answer:
        deadline = time.monotonic() + limit
        while True:
            if (line := self._line(deadline)) is None:
                raise LostError("timeout", self._overdue(limit))
            try:
                reply = decode_reply(line)
            except ValidationError as error:
                raise MachineError(f"a worker answers in the words of another code: {error}", ANOTHER_CODE) from error
            if isinstance(reply, kind):
                return reply
            match reply:
                case Progress(text, share):
                    if report:
                        report(text, share)
                case Failed(message, advice, exit_code):
                    raise _ERRORS[exit_code](message, advice)
                case _:
                    raise AssertionError(f"asked for {kind.__name__}, got {reply}")

    def _line(self, deadline: float) -> bytes | None:
        """Rank 0's next line, or None when the time is up. Raises LostError on any death."""
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            readable, _, _ = select.select([self._replies], [], [], min(left, _LOOK_EVERY))
            if readable and (chunk := self._replies.read(1 << 16)):
                self._received += chunk
            elif readable or not self.alive:
                raise LostError("crashed", self.epitaph())
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _overdue(self, limit: float) -> str:
        """What the ranks were doing when their time was up."""
        for rank in self._ranks:
            rank.ask_where()
        self._wait()
        return self._join([(rank, f"took longer than {limit:g} s") for rank in self._ranks])

    def _wait(self) -> None:
        """Give all ranks a moment to end by themselves."""
        deadline = time.monotonic() + _GRACE
        for rank in self._ranks:
            rank.wait(deadline)

    def _join(self, fates: list[tuple[_Rank, str]]) -> str:
        names = [f"rank {rank.number}: " if self.size > 1 else "" for rank, _ in fates]
        return "\n".join(
            f"{name}{fate}\n{rank.tail()}".rstrip() for name, (rank, fate) in zip(names, fates, strict=True)
        )


class _Rank:
    """One worker process in a session of its own, so that Ctrl-C passes it by and its children die with it."""

    def __init__(
        self, number: int, command: list[str], replies: int, meeting: dict[str, str], root: Path | None
    ) -> None:
        self.number = number
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._mark = 0
        ranks = {**meeting, "RANK": str(number), "LOCAL_RANK": str(number)}
        self._process = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[replies],
            env={**os.environ, **ranks, "PYTHONPATH": _python_path(root)},
            start_new_session=True,
        )

    @property
    def status(self) -> int | None:
        """Exit status, the negative number of a signal, or None while it lives."""
        return self._process.poll()

    def send(self, line: bytes) -> None:
        """Pass a request on. What it writes to standard error from here on belongs to that."""
        assert self._process.stdin
        self._mark = os.fstat(self._log.fileno()).st_size
        # If it is dead, no answer will come, and the death is looked into then.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def hang_up(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()

    def ask_where(self) -> None:
        """Have it write its Python stack to standard error, and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """End it and its children; gives up after a while on a driver that holds on to the process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait(time.monotonic() + 10 * _GRACE)
        self.hang_up()
        self._log.close()

    def tail(self) -> str:
        """The last lines of standard error and output since the latest request."""
        # Not by seeking: the worker writes at the position that it shares with us.
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._mark, size - _TAIL_BYTES)
        text = os.pread(self._log.fileno(), size - start, start).decode(errors="replace")
        # Python lists every extension module at the end of a fatal error, which pushes out what matters.
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Extension modules:")]
        return "\n".join(lines[-_TAIL_LINES:])


def _command(device: str, plugins: Sequence[Path], replies: int) -> list[str]:
    # -P: a file such as copy.py in the current folder must not be taken for the standard library's.
    command = [sys.executable, "-P", "-m", "harness.processes.child", "--device", device, "--replies", str(replies)]
    return [*command, "--ops", *map(str, plugins)] if plugins else command


def _python_path(root: Path | None) -> str:
    """Where the worker finds modules: where the parent would, whatever lies in the current folder; in `root` first."""
    entries = [entry or str(Path.cwd()) for entry in sys.path]
    if root is None:
        return os.pathsep.join(entries)
    own = Path(harness.__file__).resolve().parents[1]
    others = [entry for entry in entries if Path(entry).resolve() != own]
    # Of one length for every root: the size of the environment decides where a process's stack lies.
    return os.pathsep.join([str(root).ljust(_PATH_LENGTH, "/"), *others])


def _meeting(size: int) -> dict[str, str]:
    """Environment through which `size` ranks on this host find each other, as torch.distributed reads it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _fate(status: int | None) -> str:
    """An exit status in words."""
    if status is None or status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = str(-status)
    hint = " from outside, most likely by the kernel because memory ran out" if status == -signal.SIGKILL else ""
    return f"killed by signal {name}{hint}"
