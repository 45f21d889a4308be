"""Files of a run's folder, which may be somebody else's: opened so that nothing hangs and nothing outside is written.

What is read may be a link, but leads to a regular file: a pipe or a device would never end. What is written is never
reached through a link, since a link in a stranger's folder may point at any file of the user. The folder of a run
itself may be a link: the user has named it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from harness.errors import UnwritableError, UsageError

_MOST_BYTES = 2 * 2**30
"""A file of a run is never as large; a file with a hole may be, and takes no room on the disk."""
_BUFFER = 2**20


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """The file, open. Raises UsageError if it is no regular file, too large for a run's, or can't be read."""
    try:
        # Looked at before it is opened, since opening a device may do something, and after, since it may have changed.
        _need_regular(path, path.stat())
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=_BUFFER) as file:
            found = os.fstat(file.fileno())
            _need_regular(path, found)
            if found.st_size > _MOST_BYTES:
                message = f"{path}: has {found.st_size} bytes; a run's file has at most {_MOST_BYTES}"
                raise UsageError(message, "name a folder that 'harness run' has written")
            yield file
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}", "check its permissions") from error


def read(path: Path) -> bytes:
    """What a file holds. Raises as `reading` does."""
    with reading(path) as file:
        return file.read()


def appending(path: Path) -> int:
    """A descriptor at the end of a file of a run's folder, which is made if need be.

    Raises UsageError if the file is a link, has another name as well (a hard link), or is no regular file; MachineError
    if it can't be opened.
    """
    refuse_link(path)
    try:
        # Without O_NONBLOCK, a pipe that nobody reads would wait here.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _no_file(path) from error
        raise unwritable(path, error) from error
    try:
        found = os.fstat(descriptor)
        _need_regular(path, found)
        if found.st_nlink > 1:
            message = f"{path} is a hard link: what is written to it may be another file's content too"
            raise UsageError(message, "make a copy of the folder, and go on with the copy: cp -r FOLDER COPY")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def replace(path: Path, text: str) -> None:
    """Write a file of a run's folder anew. A reader sees the old content or the new. A link there is replaced.

    Raises UnwritableError if it can't be written.
    """
    draft = path.with_name(f"{path.name}.tmp")
    try:
        draft.unlink(missing_ok=True)  # left by a process that was killed, or a link in somebody else's folder
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise unwritable(path, error) from error


def room(folder: Path, name: str) -> Path:
    """The folder `name` inside a run's folder, made if need be.

    Raises UsageError if it is a link or no folder, MachineError if it can't be made.
    """
    inner = folder / name
    refuse_link(inner)
    try:
        inner.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{inner}: not a folder", "remove it, or choose another folder") from error
    except OSError as error:
        raise unwritable(inner, error) from error
    return inner


def refuse_link(path: Path) -> None:
    """Raise UsageError if a path is a symbolic link, whatever it points at."""
    if path.is_symlink():
        where = os.readlink(path)  # noqa: PTH115 - as it is written there
        raise UsageError(f"{path} is a link to {where}, and nothing is written through links", "remove the link")


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """The descriptor that `appending` gives, which no other process has meanwhile. Raises as `appending` does."""
    descriptor = appending(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        os.close(descriptor)


def write(descriptor: int, content: bytes) -> None:
    """Write all of it: a disk that is nearly full takes a part first and fails at the next attempt."""
    while content:
        content = content[os.write(descriptor, content) :]


def unwritable(path: Path, error: OSError) -> UnwritableError:
    """The error to raise where a file of a run can't be written."""
    return UnwritableError(
        f"{path}: can't be written: {error.strerror}",
        "free some space or correct the permissions, then go on with --resume; what was written before is kept",
    )


def _need_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _no_file(path)


def _no_file(path: Path) -> UsageError:
    return UsageError(f"{path}: not a file", "name a folder that 'harness run' has written, or another --output")
