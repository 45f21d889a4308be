"""Measuring processes that are forked from one that has torch loaded, since to import torch takes seconds.

Two processes of one nursery have the same libraries at the same addresses. So a pair of processes that are compared
comes from one nursery, and the next pair from a new one: what addresses do to a time is the same within a pair, and
differs from pair to pair.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from harness.processes import descendants, hatchery, start

_START_LIMIT = 300.0
_ANSWER_LIMIT = 30.0
_READ_EARLY = (
    "LD_",
    "GLIBC_",
    "MALLOC_",
    "PYTHON",
    "TORCH",
    "PYTORCH",
    "CUDA",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
)
"""How the names of variables begin that the loader of libraries, Python or torch reads before the fork."""
_READ_LATER = frozenset({"PYTHONPATH", "TORCH_EXTENSIONS_DIR"})


class Forked:
    """A forked process, as `subprocess.Popen` shows one that it has started. It is a child of this process."""

    def __init__(self, pid: int, stdin: io.RawIOBase) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Exit status, the negative number of a signal, or None while the process lives."""
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._file)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status, when the process has ended. Raises TimeoutExpired if that takes longer."""
        if self.poll() is None:
            select.select([self._file], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process lives."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Nursery:
    """A context in which processes can be forked. It starts with the first one, and ends with the context.

    root: the folder whose `harness` all of them import, so that it is loaded before, too; None if they may differ.
    compiler: whether torch's compiler is loaded before, too, which takes as long as torch.
    """

    def __init__(self, root: Path | None, *, compiler: bool = False) -> None:
        self._root = str(root.resolve()) if root else ""
        self._compiler = compiler
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._early: dict[str, str] = {}
        self._path: list[str] = []
        self._loaded: list[str] = []
        self._works = descendants.adopts() and _has_files_of_processes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Fork no more. What was forked goes on."""
        self._works = False
        self._end()

    def renew(self) -> None:
        """Fork from a new process from now on, whose libraries have addresses of their own. What was forked goes on."""
        self._end()
        self._process = None

    def _end(self) -> None:
        if self._socket:
            self._socket.close()
        if self._process:
            # It may still load torch, and it has nothing to finish.
            self._process.kill()
            self._process.wait()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], folder: str | None, log: int, replies: int
    ) -> Forked | None:
        """A process as `command` would start it; None where it must be started so, since it would differ.

        command: as `python.command` gives it. log: the file of its output. replies: a pipe that it finds under the same
        number.
        """
        if not self.serves(environment):
            return None
        assert self._socket
        message = {
            "arguments": list(command[2:]), "environment": dict(environment), "folder": folder or str(Path.cwd()),
            "replies": replies,
        }  # fmt: skip
        read, write = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], [read, log, replies])
            number = int(self._socket.recv(hatchery.MOST_BYTES) or 0)
        except (OSError, ValueError):
            number, self._works = 0, False
        finally:
            os.close(read)
        if number and _parent(number) == os.getpid():
            return Forked(number, io.FileIO(write, "wb"))
        os.close(write)
        if number:
            # Nobody below this process adopts what loses its parent, so it can't be waited for.
            self._works = False
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return None

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment can be forked, as far as that is known before. Starts the nursery.

        What is loaded must be what the process would load: from the same folders, and with the same variables.
        """
        imports = json.loads(environment[start.VARIABLE])
        if self._root not in ("", imports["root"]) or not self._is_ready(environment):
            return False
        folders = [entry for entry in (*imports["path"], *environment["PYTHONPATH"].split(os.pathsep)) if entry]
        added = {Path(os.path.realpath(folder)) for folder in folders} - {*map(Path, self._path)}
        names = {found.name.partition(".")[0] for folder in added if folder.is_dir() for found in folder.iterdir()}
        return names.isdisjoint(self._loaded)

    def _is_ready(self, environment: Mapping[str, str]) -> bool:
        """Whether the nursery has torch loaded, with the variables that the process would have."""
        early = {
            name: value
            for name, value in environment.items()
            if name.startswith(_READ_EARLY) and name not in _READ_LATER
        }
        if self._works and self._process is None:
            self._early = early
            variables = {name: value for name, value in environment.items() if name not in _READ_LATER}
            own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                command = [sys.executable, "-P", hatchery.__file__, str(other.fileno()), self._root]
                command += [hatchery.COMPILER] if self._compiler else []
                null = subprocess.DEVNULL
                self._process = subprocess.Popen(
                    command, stdin=null, stdout=null, stderr=null, env=variables, pass_fds=[other.fileno()],
                    start_new_session=True,
                )  # fmt: skip
            self._socket = own
            own.settimeout(_START_LIMIT)
            self._works = False
            with suppress(OSError, ValueError, KeyError):
                told = json.loads(own.recv(hatchery.MOST_BYTES))
                self._path, self._loaded = [os.path.realpath(entry) for entry in told["path"]], told["loaded"]
                self._works = True
            own.settimeout(_ANSWER_LIMIT)
        return self._works and early == self._early


def _has_files_of_processes() -> bool:
    """Whether the system gives a file that tells of a process's end: Linux does since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _parent(process: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0
