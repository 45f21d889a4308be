"""Folders for temporary files that don't outlast their command for long: the next one removes what a kill has left."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BEGIN = "harness-"
_OWNER = ".owner"


class Scratch:
    """A new folder of this user alone, with a file that its owner has locked. The lock ends with the owner."""

    def __init__(self, purpose: str) -> None:
        """Make it. purpose: a word that stands in its name."""
        prune()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_BEGIN}{purpose}-"))
        draft = self.path / f"{_OWNER}.draft"
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _OWNER)  # it has its name only once it is locked

    def remove(self) -> None:
        """Remove it with all that it holds. Does nothing the second time."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


@contextmanager
def folder(purpose: str) -> Iterator[Path]:
    """A context with such a folder, which is removed in the end."""
    made = Scratch(purpose)
    try:
        yield made.path
    finally:
        made.remove()


def prune() -> None:
    """Remove the folders of this user whose owners are dead."""
    for place in Path(tempfile.gettempdir()).glob(f"{_BEGIN}*-*"):
        with suppress(OSError):
            found = place.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_free(place / _OWNER):
                shutil.rmtree(place, ignore_errors=True)


def is_free(lock: Path) -> bool:
    """Whether a file is there that no living process has locked. Raises OSError if there is none."""
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
