"""One measuring process as its parent sees it: started, asked, listened to, ended."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness import ranks
from harness.processes import descendants, python
from harness.processes.nursery import Forked
from harness.processes.surroundings import Surroundings

GRACE = 2.0
"""Seconds in which a process that should end, or answer, does so."""

PREFIX = "harness-ranks-"
"""How the names of folders begin in which ranks of one host meet."""

_LOOPBACK = "lo"
_MODULE = "harness.processes.child"
_LONGEST_REPLY = 1 << 28
"""Bytes of a reply. A million samples take a tenth of it."""
_TAIL_LINES = 20
_FRAMES = 40
_STACK = "(most recent call first):"
"""How faulthandler begins the stack of the one thread that it is asked for."""
_TAIL_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the ranks of a case find each other.

    size, local_size: how many ranks there are, and how many of them on the host of this one. folder: where they meet if
    one host has all of them; no other user may enter it. address, port: where rank 0 opens torch's store if several
    hosts have them, or if their code is older than the folder.
    """

    size: int
    local_size: int
    address: str
    port: int
    folder: Path | None = None

    def environment(self) -> dict[str, str]:
        """The variables that tell a rank so, as torch.distributed and `ranks.from_environment` read them."""
        found = {
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            ranks.FOLDER: str(self.folder or ""),
        }
        if self.folder:
            # Gloo's connections prove nothing, so they stay within the host, unless the user has named a network.
            found["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", _LOOPBACK)
        return found


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a rank is started with.

    root, around, compiler, waits: as in `Team`. local: the number of its device on its host; the rank's unless told.
    """

    device: str
    plugins: tuple[Path, ...]
    meeting: Meeting
    root: Path | None = None
    local: int | None = None
    around: Surroundings | None = None
    compiler: bool = False
    waits: bool = False


class Rank:
    """A process in a session of its own, so that Ctrl-C doesn't reach it and its children can be killed with it."""

    def __init__(self, number: int, begin: Beginning) -> None:
        """Start it."""
        self.number = number
        self._received = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._mark = 0
        self._is_killed = False
        self._below = set[int]()
        replies, sink = os.pipe()
        os.set_blocking(replies, False)
        self._replies = io.FileIO(replies)
        local = number if begin.local is None else begin.local
        environment = python.environment(begin.root, begin.around) | begin.meeting.environment()
        environment |= {"RANK": str(number), "LOCAL_RANK": str(local)}
        try:
            self._process = _started(begin, environment, self._log, sink)
        finally:
            os.close(sink)

    @property
    def status(self) -> int | None:
        """Exit status, the negative number of a signal, or None while the process lives."""
        return self._process.poll()

    @property
    def fate(self) -> str:
        """How the process ended, in words."""
        if self.status is None or self.status >= 0:
            return f"ended with exit status {self.status}"
        try:
            name = signal.Signals(-self.status).name
        except ValueError:
            name = str(-self.status)
        from_outside = " from outside, most likely by the kernel because memory ran out"
        return f"killed by signal {name}{from_outside if self.status == -signal.SIGKILL else ''}"

    def fileno(self) -> int:
        """The pipe of replies, for `select`."""
        return self._replies.fileno()

    def send(self, line: bytes) -> None:
        """Pass a question on. What the process prints from here on belongs to this question."""
        assert self._process.stdin
        self._mark = os.fstat(self._log.fileno()).st_size
        # If the process is dead, no answer will come. The code that waits for the answer finds that out.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)

    def receive(self) -> bool:
        """Read what waits in the pipe, without waiting for more. Returns whether more may come."""
        ended = self.status is not None  # asked first: what a process writes before its end is read below
        chunk = self._replies.read(1 << 16)
        self._received += chunk or b""
        # None: nothing is there now. b"": the pipe is closed. A child of a dead process may hold the pipe open.
        return bool(chunk) or (chunk is None and not ended)

    def lines(self) -> Iterator[bytes]:
        """The whole lines received and not taken yet; also one that has no end, which is no reply."""
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            yield line
        if len(self._received) > _LONGEST_REPLY:
            line, self._received = self._received, b""
            yield line

    def close_input(self) -> None:
        """Ask no more; a process that waits for a question then ends."""
        assert self._process.stdin
        self._below |= descendants.below(self._process.pid)
        self._process.stdin.close()

    def interrupt(self) -> None:
        """Have the process write its Python stack to standard error, and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        """Wait for the end of the process, until `deadline` on the monotonic clock at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def begin_kill(self) -> None:
        """Have the process and all that is below it end, without waiting for it."""
        if self.status is None and not self._is_killed:
            descendants.end(self._process.pid)
        # What it leaves behind, such as a server with a session of its own, would slow down what is measured next.
        descendants.end_left(self._below)
        self._is_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End the process and its children; give up after a while on a driver that holds on to it."""
        self.begin_kill()
        self.wait(time.monotonic() + 10 * GRACE)
        self.close_input()
        self._replies.close()
        self._log.close()

    def tail(self) -> str:
        """The last lines of standard error and output since the latest question."""
        # Read without seeking: the process writes at the file's position, which it shares with this process.
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._mark, size - _TAIL_BYTES)
        text = os.pread(self._log.fileno(), size - start, start).decode(errors="replace")
        # Python lists every extension module at the end of a fatal error, which pushes out what matters.
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Extension modules:")]
        return "\n".join(_what_matters(lines))


def _what_matters(lines: Sequence[str]) -> Sequence[str]:
    """The last lines. Of a stack at their end the innermost frames, which come first, and lines ahead of it."""
    stack = max((number for number, line in enumerate(lines) if line.endswith(_STACK)), default=len(lines))
    return [*lines[max(0, stack - _TAIL_LINES) : stack], *lines[stack : stack + 1 + _FRAMES]]


def _started(
    begin: Beginning, environment: Mapping[str, str], log: IO[bytes], sink: int
) -> subprocess.Popen[bytes] | Forked:
    """The process, forked where that can be. sink: the pipe of its replies."""
    command = _command(begin, sink)
    folder = begin.around.working_folder() if begin.around else None
    nursery = begin.around.nursery if begin.around and begin.meeting.size == 1 else None
    if nursery and (forked := nursery.start(command, environment, folder, log.fileno(), sink)):
        return forked
    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=[sink],
        env=environment,
        start_new_session=True,
        cwd=folder,
    )


def _command(begin: Beginning, replies: int) -> list[str]:
    arguments = ["--device", begin.device, "--replies", str(replies)]
    plugins = ["--ops", *map(str, begin.plugins)] if begin.plugins else []
    trees = begin.around.listen if begin.around else ()
    listen = ["--listen", *map(str, trees)] if trees else []
    # Another revision may not know these options, and isn't given them.
    more = [*(["--compiler"] if begin.compiler else []), *(["--waits"] if begin.waits else [])]
    return python.command(_MODULE, [*arguments, *plugins, *listen, *more])
