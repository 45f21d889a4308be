"""What commands print, for the pages that show it: from a committed run, or from the command itself."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise

from committed import ROOT, RUNS
from rich.console import Console
from typer.testing import CliRunner

from harness import store
from harness.cli import app
from harness.model import Run
from harness.report import terminal

WIDTH = 110
"""Characters of a line. A page shows no more of a block without scrolling."""


def screen(about: str) -> list[str]:
    """A command, and what it printed when it measured a run. about: the run's name, then the command.

    Only the cases that the command's --only names are shown, so that a page can show a few cases of a large
    run. The notes on what texts claim are left out.
    """
    name, _, command = about.partition(" ")
    words = shlex.split(command)
    globs = [glob for option, glob in pairwise(words) if option == "--only"]
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False)
    with console.capture() as written:
        terminal.render(_chosen(store.load(RUNS / name), globs or ["*"]), console)
    return _block(command, written.get())


def _chosen(run: Run, globs: list[str]) -> Run:
    """The run as if only these cases had been asked for, without claims. Raises SystemExit if it has none of them."""
    kept = tuple(m for m in run.measurements if any(fnmatchcase(m.case.id, glob) for glob in globs))
    if not kept:
        raise SystemExit(f"no case of {run.header.name} is like {' or '.join(globs)}")
    ids = {m.case.id for m in kept}
    scenarios = tuple(
        replace(scenario, claims=(), cases=tuple(case for case in scenario.cases if case in ids))
        for scenario in run.header.scenarios
    )
    return replace(run, header=replace(run.header, scenarios=scenarios), measurements=kept, attachments=())


def command(about: str) -> list[str]:
    """A command of the harness, and what it prints in the root of the repository. Raises SystemExit if it fails."""
    _, *words = shlex.split(about)
    with chdir(ROOT):
        done = CliRunner().invoke(app, words, env={**os.environ, "COLUMNS": str(WIDTH)})
    if done.exit_code:
        raise SystemExit(f"no output to show: {about}: {done.output or done.exception}")
    return _block(about, done.stdout)


def _block(about: str, text: str) -> list[str]:
    return ["```text", f"$ {about}", *(line.rstrip() for line in text.strip("\n").splitlines()), "```"]


SCREENS: dict[str, Callable[[str], list[str]]] = {"screen": screen, "command": command}
