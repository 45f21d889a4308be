"""The processes below a process, also such as have sessions of their own or have lost their parents: found and ended.

Linux tells of them in /proc. Elsewhere none is found, and only groups of processes are ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PROC = Path("/proc")


def adopt() -> None:
    """Be the parent of whatever below this process loses its own, so that it stays below this process."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def adopts() -> bool:
    """Whether this process is such a parent."""
    if sys.platform != "linux":
        return False
    import ctypes

    found = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return bool(found.value)


def below(process: int) -> set[int]:
    """The numbers of the processes that live below a process."""
    children = defaultdict(list)
    for folder in _PROC.glob("[0-9]*") if sys.platform == "linux" else ():
        # It may be gone by now.
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything.
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                children[int(parent)].append(int(folder.name))
    found, todo = set[int](), [process]
    while todo:
        todo += (more := children.pop(todo.pop(), []))
        found.update(more)
    return found


def end(process: int) -> None:
    """Kill the processes below a process, also those that they start meanwhile."""
    known = set[int]()
    while new := below(process) - known:
        known |= new
        for one in new:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)


def end_left(found: set[int]) -> None:
    """Kill those of some processes that live below this process now, and all below them."""
    for one in found and found & below(os.getpid()):
        end(one)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)
