"""Stands for Python in tests: a process that server.py forks does the work, and this one is to its parent what that is.

`client.py FOLDER ...` asks the server that listens at FOLDER/socket for a process of Python with the arguments `...`.
It imports little, so that it starts in a hundredth of a second. What can't be forked, such as most of `-c`, the real
Python does; it does everything where $FORKED_COLD is set.
"""

from __future__ import annotations

import marshal
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
MOST_FILES = 253
"""What one message to the server may carry."""
WORKER = ["-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"]
"""The arguments of a worker of pytest-xdist, which reads on standard input what it is to do."""
OPTIONS = (["-P"], ["-u"])
"""Options of Python before a script or a module that is forked: the harness gives the first, torchrun the second."""


def main() -> None:
    folder, *arguments = sys.argv[1:]
    files = [number for number in range(MOST_FILES) if is_open(number)]
    server = socket.socket(socket.AF_UNIX)
    if "FORKED_COLD" in os.environ or not can_be_forked(arguments) or not forks(server, folder):
        os.execv(sys.executable, [sys.executable, *arguments])
    # A signal that comes before the handlers are there waits for them: the forked process may run by then.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ask(server, arguments, files)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: server.sendall(bytes([number])))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    for file in files:
        os.close(file)  # a pipe is to end when the forked process closes it
    end(server.recv(4))


def can_be_forked(arguments: list[str]) -> bool:
    """Whether they are a script or a module and its arguments, after one of OPTIONS or none, or a worker's."""
    if arguments == WORKER:
        return "FORKED_WORKERS" in os.environ
    match arguments[arguments[:1] in OPTIONS :]:
        case ["-m", _, *_]:
            return True
        case [first, *_]:
            return not first.startswith("-")
    return False


def forks(server: socket.socket, folder: str) -> bool:
    """Whether the server answers, and can fork."""
    return not server.connect_ex(f"{folder}/socket") and server.recv(1) == b"y"


def ask(server: socket.socket, arguments: list[str], files: list[int]) -> None:
    """Have a process forked that has the files, the variables and the working folder of this one."""
    os.umask(mask := os.umask(0))
    folder = os.getcwd()  # noqa: PTH109 - pathlib would take as long as all else
    asked = {"arguments": arguments, "variables": dict(os.environ), "folder": folder, "mask": mask, "files": files}
    text = marshal.dumps(asked)
    socket.send_fds(server, [len(text).to_bytes(4, "big")], files)
    server.sendall(text)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def end(told: bytes) -> None:
    """End as the forked process has ended: with its exit status, or by its signal, told as a negative number."""
    code = int.from_bytes(told, "big", signed=True) if told else 255  # the server is gone
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
