"""One command at a time measures on a device: a lock on a file, which all users of a machine find by the device's name.

The system lets go of the lock of a process that ends, however it ends. A container has folders of its own: commands in
two containers don't see each other's locks, unless both have the machine's /run/lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from harness.devices import Device
from harness.foreign import printable

HOLDS = "HARNESS_HOLDS"
"""The variable that tells processes below a holder what it holds, so that they don't wait for it."""
_FOLDERS = (Path("/run/lock"), Path("/tmp"))
_LONGEST = 4096  # bytes of what a holder says of itself
_SHOWN = 120  # characters of its command

_held: Counter[str] = Counter()


@contextmanager
def held(device: Device, indices: Iterable[int]) -> Iterator[None]:
    """A context in which no other command of this machine measures on these devices of a kind.

    indices: as the ranks of a case count them. Where another command holds one of them, a line on standard error says
    which, and this one waits. Nothing is held of a kind whose devices have no names, as the host's processor.
    """
    names = device.hardware
    chosen = {names[index] for index in indices if index < len(names)}
    # In one order for all commands: two that hold a device each would else wait for each other's.
    with ExitStack() as stack:
        for name in sorted(chosen):
            stack.enter_context(_held_one(name))
        yield


@contextmanager
def _held_one(name: str) -> Iterator[None]:
    above = os.environ.get(HOLDS, "").split()
    if _held[name] or _word(name) in above:
        _held[name] += 1
        try:
            yield
        finally:
            _held[name] -= 1
        return
    descriptor = _locked(name)
    _held[name] += 1
    os.environ[HOLDS] = " ".join([*above, _word(name)])
    try:
        yield
    finally:
        _held[name] -= 1
        os.environ[HOLDS] = " ".join(above)
        if descriptor is not None:
            # Not only closed: a process that was forked meanwhile has the file open, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _locked(name: str) -> int | None:
    """The file of a device, locked, with a word on who holds it; None, after a warning, where there can be none."""
    file = folder() / f"harness-{_word(name)}.lock"
    while True:
        try:
            descriptor = _opened(file)
        except OSError as error:
            sys.stderr.write(f"warning: {file}: {error.strerror}: other commands may measure on {name} meanwhile\n")
            return None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.stderr.write(f"waiting for {name}: {_holder(descriptor)}; Ctrl-C stops waiting\n")
                sys.stderr.flush()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_in_place(descriptor, file):
                _tell(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # somebody has removed the file meanwhile, so others lock another one


def _word(name: str) -> str:
    """The name as a part of a file's name, without spaces."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)


def folder() -> Path:
    """The folder of the locks: the first that every user may write to, so that all users take the same one."""
    return next((place for place in _FOLDERS if _is_for_all(place)), _FOLDERS[-1])


def _is_for_all(place: Path) -> bool:
    with suppress(OSError):
        found = place.stat()
        return stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_IWOTH)
    return False


def _opened(file: Path) -> int:
    """The file, opened; made if it isn't there. Raises OSError."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            # Without O_CREAT: a system may refuse that for a file of another user in a folder for all.
            return os.open(file, flags)
        except FileNotFoundError:
            with suppress(FileExistsError):
                descriptor = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(descriptor, 0o666)  # whatever the umask is
                return descriptor
        except PermissionError:
            return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_in_place(descriptor: int, file: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), file.stat())
    return False


def _tell(descriptor: int) -> None:
    """Say in the file who holds it. A user who may not write there leaves what stands there."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    told = {"process": os.getpid(), "command": command[:_SHOWN], "since": f"{datetime.now().astimezone():%H:%M:%S}"}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(told).encode(), 0)


def _holder(descriptor: int) -> str:
    """Who holds a lock, as the holder says in the file."""
    try:
        told = json.loads(os.pread(descriptor, _LONGEST, 0))
        process, command, since = int(told["process"]), str(told["command"]), str(told["since"])
    except (OSError, ValueError, TypeError, KeyError):
        return "another command measures on it"
    return printable(f"process {process} measures on it since {since[:8]} ({command[:_SHOWN]})")
