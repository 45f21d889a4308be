"""`--prepare`: each side gets its own packages, by a command that runs once for each."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import UsageError
from harness.gate import git
from harness.gate.worktree import Checkout

_LIMIT = 3600
_TOLD = 15  # lines of a command that failed
_OF_SHELLS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1", "cd", "export", "source"})
_INSTALLS = re.compile(r"((python[\d.]* -m )?pip[\d.]*|uv pip|conda|mamba) install ")
_OF_THIS_PYTHON = {"pip": ["-m", "pip"], "python": [], "python3": []}


def prepared(code: Checkout, commands: Sequence[str]) -> Checkout:
    """The side with the packages that the commands install for it. `{site}` and `{root}` stand for its folders.

    A command isn't given to a shell. `pip` and `python` are of the Python that runs here, so that what they build fits.
    Raises UsageError for a command that fails.
    """
    if not commands or code.home is None or code.folder is None:
        return code
    site = code.home / "site"
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    for command in commands:
        _run(_words(command, site, code.folder), code)
    return replace(code, around=replace(code.around, site=site))


def _words(command: str, site: Path, root: Path) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--prepare {command!r}: {error}", "quote it as a shell would take it") from error
    if not words:
        raise UsageError("--prepare names no command", "such as 'pip install --no-deps --target {site} {root}'")
    if syntax := next((word for word in words if word in _OF_SHELLS), None):
        what = f"--prepare {command!r}: it isn't given to a shell, for which {syntax!r} is meant"
        raise UsageError(what, f"repeat --prepare for each command, or name the shell: bash -c {shlex.quote(command)}")
    if _INSTALLS.match(" ".join(words)) and "{site}" not in command:
        what = f"--prepare {command!r}: both sides would have what is installed last, in the Python of both"
        raise UsageError(what, "install into each side's own folder: pip install --no-deps --target {site} {root}")
    filled = [word.replace("{site}", str(site)).replace("{root}", str(root)) for word in words]
    own = _OF_THIS_PYTHON.get(filled[0])
    return filled if own is None else [sys.executable, *own, *filled[1:]]


def _run(words: Sequence[str], code: Checkout) -> None:
    label = code.code.label
    try:
        done = subprocess.run(
            words,
            cwd=code.folder,
            env=code.around.applied(git.environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"--prepare can't be run for {label}: {error}", "run the command by hand, then again"
        ) from error
    if done.returncode:
        said = "\n".join(done.stdout.strip().splitlines()[-_TOLD:])
        raise UsageError(
            f"--prepare failed for {label} with exit status {done.returncode}: {shlex.join(words)}\n{said}",
            f"run the command in a checkout of {label}, or name a base for which it works",
        )
