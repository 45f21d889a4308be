"""Worktrees and folders of gates that were killed: the next gate removes them, of whichever repository they are."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from harness.errors import UsageError
from harness.gate.git import git
from harness.processes.scratch import is_free, prune

MADE = ".made"
"""How the name of a folder ends that has what was made for a side, beside the worktree of the side."""


def clean(worktrees: Path) -> None:
    """Remove what no living gate holds. worktrees: the folder with a folder for each repository, with locks.

    A lock names the repository. Temporary folders are removed, too.
    """
    prune()
    for lock in worktrees.glob("*/*.lock"):
        slot = lock.with_suffix("")
        with suppress(OSError):
            if slot.exists() and is_free(lock):
                for place in (*slot.iterdir(), slot):
                    remove(Path(lock.read_text(encoding="utf-8") or "/"), place)


def made(folder: Path) -> Path:
    """The folder with what was made for the side whose worktree is `folder`."""
    return folder.with_name(f"{folder.name}{MADE}")


def remove(top: Path, folder: Path) -> None:
    """Remove a worktree of the repository `top`, and what was made for its side. Does nothing where there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(made(folder), ignore_errors=True)
    # Not `prune`, which also drops worktrees whose folders can't be reached for a while. Fails if there was none.
    with suppress(UsageError):
        git(top, "worktree", "remove", "--force", str(folder))
    with suppress(OSError):
        folder.parent.rmdir()  # of the commit's folder, where nothing else lies
