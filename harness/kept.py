"""What the harness keeps in the cache folder for the next process: compiled kernels, the launcher, measured limits.

What is kept there is believed: kernels and the launcher are executed. So it must be this user's alone. A folder or a
file that belongs to another user, or that group or others may write to, isn't used, and a warning says so. Without the
cache folder everything works as well, only slower: also where it is full, or can't be written.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from harness import paths

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read(name: str) -> bytes | None:
    """The content of a kept file; None if there is none that can be believed. name: relative to the cache folder."""
    if not (file := place(name)):
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            return None if _distrusted(opened.fileno()) else opened.read()
    except OSError:
        return None


def write(name: str, content: bytes) -> None:
    """Keep a file, if it can be kept. Another process sees the whole file, or none."""
    if not (file := place(name)):
        return
    with suppress(OSError):
        descriptor, draft = tempfile.mkstemp(prefix=".draft-", dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(content)
            Path(draft).replace(file)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise


def place(name: str) -> Path | None:
    """Where a kept file is or will be; None where the folder can't be made, or strangers could have written into it.

    The folder is made, for this user alone.
    """
    file = paths.cache() / name
    for folder in dict.fromkeys((paths.cache(), file.parent)):
        paths.make_private(folder)
        if problem := distrust(folder):
            _warn(problem)
            return None
    return file if file.parent.is_dir() else None


def obstacle(*rooms: str) -> str:
    """Why folders of the cache folder can't keep anything; "" if they can. They are made, for this user alone."""
    for folder in (paths.cache(), *(paths.cache() / name for name in rooms)):
        paths.make_private(folder)
        if problem := distrust(folder):
            return problem
        try:
            with tempfile.TemporaryFile(dir=folder) as tried:
                tried.write(b"whether there is room")
        except OSError as error:
            return f"{folder} can't be written: {error.strerror}"
    return ""


def distrust(path: Path) -> str:
    """Why a folder or file of the cache isn't used: who else can write to it; "" where nobody can, or it isn't there.

    A link in the path is followed, since who could make it is asked of the folder that it lies in.
    """
    with suppress(OSError):
        return _described(path, path.stat())
    return ""


def _described(path: Path, found: os.stat_result) -> str:
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (number {found.st_uid})"
    if found.st_mode & _OTHERS_WRITE:
        return f"{path} can be written by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def _distrusted(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    return not stat.S_ISREG(found.st_mode) or bool(_described(Path(), found))


@cache
def _warn(problem: str) -> None:
    """Say once in this process that the cache isn't used."""
    sys.stderr.write(
        f"warning: the cache folder isn't used: {problem}; kernels are compiled anew and limits measured anew. To do: "
        "remove it, or name a folder of your own in HARNESS_CACHE\n"
    )
