"""Code of others is loaded first by a process of its own, so that what ends or blocks that process ends no command.

The process is forked, so it has all that this one has loaded, and is there at once. Only commands ask for it: a process
that measures may die by itself, and a program that uses the harness as a library may have threads, which no fork has.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NoReturn

from harness.errors import UsageError, brief

_LIMIT = 120.0
"""Seconds in which code is loaded, though it imports torch from a disk far away."""
_PATIENCE = 10.0
"""Seconds after which a user is told what takes so long."""
_MOST_PRINTED = 1 << 20
"""Bytes that it may print meanwhile."""
_GRACE = 2.0
_LOOK_EVERY = 0.05
_RETURNED = b"."
_ADVICE = "an import only declares: what takes long, prints or may crash belongs into the functions of variants"

_wanted = False
_passed: set[str] = set()


@contextmanager
def wanted() -> Iterator[None]:
    """Code of others is tried first meanwhile."""
    global _wanted  # noqa: PLW0603 - a process is a command or it isn't
    before, _wanted = _wanted, hasattr(os, "fork")
    try:
        yield
    finally:
        _wanted = before


def first(what: str, load: Callable[[], object], key: str = "") -> None:
    """Call `load` in a forked process, if this process is a command's. Whatever `load` raises there is no failure.

    what: names the code in messages. key: tells the code from its later versions; what has passed once isn't tried
    again. Raises UsageError if the process is killed or ends by itself, prints too much, or takes too long.
    """
    name = f"{what} {key}"
    if not _wanted or name in _passed:
        return
    with tempfile.TemporaryFile() as stacks:
        fate = _Forked(what, load, stacks).fate()
        stacks.seek(0)
        said = "\n".join([fate, stacks.read(_MOST_PRINTED).decode(errors="replace")])
    if fate:
        raise UsageError(f"{what}: {brief(said)}", _ADVICE)
    _passed.add(name)


class _Forked:
    """The process that loads the code. what: its name. stacks: a file for where Python was when a signal ended it."""

    def __init__(self, what: str, load: Callable[[], object], stacks: BinaryIO) -> None:
        self._what = what
        returned, tell = os.pipe()
        printed, sink = os.pipe()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        with warnings.catch_warnings():
            # Python warns where a process has threads. The only other thread of a command draws its progress.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            _load(load, tell, sink, stacks)
        os.close(tell)
        os.close(sink)
        self._returned, self._printed = returned, printed
        self._status: int | None = None

    def fate(self) -> str:
        """Why the code can't be loaded, in words; '' if it can. The process and its children are gone afterwards."""
        try:
            return self._watched()
        finally:
            for end in (os.killpg, os.kill):  # it may not have come as far as to have a group
                with suppress(ProcessLookupError):
                    end(self._process, signal.SIGKILL)
            while not self._ended:
                time.sleep(_LOOK_EVERY)
            os.close(self._returned)
            os.close(self._printed)

    def _watched(self) -> str:
        begin, printed, is_told = time.monotonic(), 0, False
        open_ends = [self._returned, self._printed]
        while printed <= _MOST_PRINTED and time.monotonic() < begin + _LIMIT:
            if not is_told and time.monotonic() > begin + _PATIENCE:
                is_told = True
                self._tell()
            # Asked first: what a process says before its end is read below.
            ended = self._ended
            ready = select.select(open_ends, [], [], 0.0 if ended else _LOOK_EVERY)[0]
            if self._returned in ready:
                if os.read(self._returned, 1):
                    return ""
                open_ends.remove(self._returned)
            if self._printed in ready:
                printed += len(piece := os.read(self._printed, 1 << 16))
                if not piece:
                    open_ends.remove(self._printed)
            elif ended:
                return self._words
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGTERM)  # so that it says where it is
        deadline = time.monotonic() + _GRACE
        while not self._ended and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY)
        if printed > _MOST_PRINTED:
            return f"prints more than {_MOST_PRINTED >> 20} MiB while it is loaded"
        return f"isn't loaded within {_LIMIT:g} s"

    def _tell(self) -> None:
        if sys.stderr:
            sys.stderr.write(f"{self._what}: is still being loaded; {_LIMIT:g} s are the most\n")
            sys.stderr.flush()

    @property
    def _ended(self) -> bool:
        if self._status is None:
            process, status = os.waitpid(self._process, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if process else None
        return self._status is not None

    @property
    def _words(self) -> str:
        if self._status is None or self._status >= 0:
            return f"ends the process that loads it, with exit status {self._status}"
        known = {number.value: number.name for number in signal.Signals}
        return f"kills the process that loads it: signal {known.get(-self._status, -self._status)}"


def _load(load: Callable[[], object], tell: int, sink: int, stacks: BinaryIO) -> NoReturn:
    """Load the code in the forked process, say so however `load` came back, and end."""
    try:
        _prepare(sink, stacks)
        with suppress(BaseException):
            load()
        os.write(tell, _RETURNED)
    finally:
        os._exit(0)


def _prepare(sink: int, stacks: BinaryIO) -> None:
    """Have signals and standard streams as a process of its own has them. sink: where what it prints goes."""
    global _wanted  # noqa: PLW0603
    _wanted = False
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - pathlib's files may be what is loaded
        os.dup2(nothing.fileno(), 0)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(stacks, all_threads=False)
    faulthandler.register(signal.SIGTERM, stacks, all_threads=False, chain=True)
