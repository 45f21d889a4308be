"""Git, as the gate asks it: without hooks, and without what a hook that runs the gate has set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.errors import MachineError, UsageError

_TIMEOUT = 120.0
_LOCATIONS = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"})


def environment() -> dict[str, str]:
    """The environment of this process without what git sets for its hooks, which would name another repository."""
    return {name: value for name, value in os.environ.items() if name not in _LOCATIONS}


def git(folder: Path, *arguments: str, limit: float = _TIMEOUT) -> str:
    """What git prints. Raises UsageError with git's own message, MachineError if git can't be run within `limit` s."""
    # Without the user's hooks, which may do anything to a new worktree.
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        # In a session of its own, so that a second Ctrl-C can't stop the removal of a worktree.
        done = subprocess.run(
            command,
            capture_output=True,
            errors="surrogateescape",  # what git prints is text, but a name of a file may be any bytes
            check=False,
            timeout=limit,
            env=environment() | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MachineError("git isn't installed", "install git: --base names one of its revisions") from error
    except subprocess.TimeoutExpired as error:
        raise MachineError(
            f"git {arguments[0]} took longer than {limit:g} s", "find out why git hangs, then run the gate again"
        ) from error
    if done.returncode:
        raise UsageError(f"git {arguments[0]} failed: {shown(done.stderr.strip())}", "")
    return done.stdout


def shown(text: str) -> str:
    """What git prints, for people and records: bytes that aren't UTF-8 are replaced."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
