"""Forks processes that have torch and other large packages loaded, for tests: torch alone takes seconds to import.

`server.py FOLDER` listens at FOLDER/socket for client.py, and says so by a line. It ends when its standard input does,
which is a pipe from the test session, and takes along all that it has forked. What it has loaded of the harness,
preloaded.py gives to the processes that would load the same.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import io
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parent))
from preloaded import Preloaded  # type: ignore[import-not-found]

del sys.path[0]

LOADED = (
    "torch",
    "torch._dynamo",
    "torch._dynamo.backends.common",
    "pydantic.dataclasses",
    "pydantic.json_schema",
    "yaml",
    "typer",
    "rich.progress",
    "pandas.io.formats.csvs",
    "matplotlib.figure",
    "matplotlib.backends.backend_svg",
    "hypothesis",
    "scipy.stats",
)
MOST_FILES = 253
"""What one message of a client may carry."""
ABOVE = 512
"""Files come here first, since the numbers that they are to have may be in use."""


@dataclass(frozen=True)
class Child:
    """A forked process. ended: a file that can be read when it has. client: what stands for it."""

    process: int
    ended: int
    client: socket.socket


@dataclass(frozen=True)
class Asked:
    """What a client wants: the command line of Python, variables, working folder, umask; and its open files."""

    arguments: list[str]
    variables: dict[str, str]
    folder: str
    mask: int
    files: dict[int, int]
    """What number each has here, by its number there."""


def received(client: socket.socket) -> Asked | None:
    """What a client sends; None if it ended before it had sent all."""
    size, files, _, _ = socket.recv_fds(client, 4, MOST_FILES)
    text = b""
    while more := client.recv(int.from_bytes(size, "big") - len(text)):
        text += more
    if len(size) < 4 or len(text) < int.from_bytes(size, "big"):
        for file in files:
            os.close(file)
        return None
    asked = marshal.loads(text)
    return Asked(**asked | {"files": dict(zip(asked["files"], files, strict=True))})


class Server:
    """Forks, in one thread: where there are several, a forked process would have only one of them."""

    def __init__(self, connections: socket.socket) -> None:
        self._connections = connections
        self._selector = selectors.DefaultSelector()
        self._selector.register(connections, selectors.EVENT_READ, self._begin)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._leave)
        self._children: list[Child] = []
        self._forked: list[int] = []

    def serve(self) -> Asked:
        """Do what clients ask for. Returns in forked processes, which are to do what it returns."""
        while True:
            (key, _), *_ = self._selector.select()  # what it does may end the other clients
            asked: Asked | None = key.data()
            if asked is not None:
                return asked

    def _begin(self) -> Asked | None:
        client, _ = self._connections.accept()
        if is_alone():
            load()  # which may start threads
        with suppress(BrokenPipeError):
            client.sendall(b"y" if is_alone() else b"n")
        asked = received(client) if is_alone() else None
        if asked is None:
            client.close()
            return None
        process = os.fork()
        if process == 0:
            client.close()
            self._close()
            return asked
        for file in asked.files.values():
            os.close(file)
        child = Child(process, os.pidfd_open(process), client)
        self._children.append(child)
        self._forked.append(process)
        self._selector.register(child.ended, selectors.EVENT_READ, partial(self._end, child))
        self._selector.register(client, selectors.EVENT_READ, partial(self._pass_on, child))
        return None

    def _pass_on(self, child: Child) -> None:
        """Signals that the client got. If it was killed, its process is, with all that this one has started."""
        if numbers := child.client.recv(16):
            for number in numbers:
                os.kill(child.process, number)
        else:
            kill(child.process)
            self._end(child)

    def _end(self, child: Child) -> None:
        """Tell the client how its process has ended.

        The process isn't waited for: as long as it is a zombie, no other process gets its number or its group's.
        """
        ended = os.waitid(os.P_PID, child.process, os.WEXITED | os.WNOWAIT)
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with suppress(BrokenPipeError):
            child.client.sendall(code.to_bytes(4, "big", signed=True))
        self._selector.unregister(child.ended)
        self._selector.unregister(child.client)
        os.close(child.ended)
        child.client.close()
        self._children.remove(child)

    def _leave(self) -> NoReturn:
        """End all that was forked, and what it has started and left behind."""
        for process in self._forked:
            kill(process)
            os.waitpid(process, 0)
        sys.exit()

    def _close(self) -> None:
        """Close all files, in a forked process."""
        self._selector.close()
        self._connections.close()
        for child in self._children:
            os.close(child.ended)
            child.client.close()


def kill(process: int) -> None:
    """End a forked process and its children."""
    for end in (os.killpg, os.kill):  # it may not have come as far as to have a group
        with suppress(ProcessLookupError):
            end(process, signal.SIGKILL)


def is_alone() -> bool:
    """Whether this process has one thread. If a package has started more, a forked process might wait for them."""
    return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208 - pathlib gives no more


@cache
def load() -> Preloaded:
    """Import what takes long. It happens once, for the first client. What isn't found here, processes may find."""
    for name in LOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    preloaded = Preloaded()
    # A process that ends would take apart torch's libraries of operators, for 50 ms of copied memory.
    for end in weakref.finalize._registry:  # type: ignore[attr-defined]
        end.atexit = False
    gc.collect()
    gc.freeze()
    return preloaded


def become(asked: Asked) -> None:
    """Make this process one that a command line has just started."""
    os.setsid()
    moved = {there: fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, ABOVE) for there, here in asked.files.items()}
    for here in asked.files.values():
        os.close(here)
    for number in (0, 1, 2):
        os.close(number)
    for there, here in moved.items():
        os.dup2(here, there)
        os.close(here)
    os.umask(asked.mask)
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.variables)
    sys.executable = str(Path(sys.argv[1]) / "python")
    assert isinstance(sys.stdout, io.TextIOWrapper)
    assert isinstance(sys.stderr, io.TextIOWrapper)
    if asked.arguments[0] == "-u":
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=False, write_through=True)
    else:
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))


def run(arguments: list[str]) -> None:
    """Run a script, a module or a worker of pytest-xdist as Python does."""
    safe = "PYTHONSAFEPATH" in os.environ or arguments[0] == "-P"
    sys.orig_argv = [sys.executable, *arguments]
    worker = arguments[:2] == ["-u", "-c"]
    arguments = arguments[arguments[0] in ("-P", "-u") :]
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    own = Path.cwd() if module else Path(sys.argv[0]).resolve().parent
    entries = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = map(str, entries if safe else [own, *entries])
    importlib.invalidate_caches()
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if worker:
        # A worker of pytest-xdist. It loads the harness itself, as pytest alone does, since tests change its modules.
        exec(arguments[1], main.__dict__)
        return
    load().install(run=arguments)
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        main.__file__ = str(Path.cwd() / sys.argv[0])
        exec(compile(Path(main.__file__).read_bytes(), main.__file__, "exec"), main.__dict__)


def end_by(error: BaseException | None) -> NoReturn:
    """End as Python does after `error`, but without tearing down torch, which takes a third of a second."""
    status: int | str = 0
    if isinstance(error, SystemExit):
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined] # as Python does it in the end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def main() -> None:
    connections = socket.socket(socket.AF_UNIX)
    connections.bind(f"{sys.argv[1]}/socket")
    connections.listen(64)
    print("ready", flush=True)
    asked = Server(connections).serve()
    become(asked)
    try:
        run(asked.arguments)
    except BaseException as error:
        end_by(error)
    end_by(None)


if __name__ == "__main__":
    main()
