"""A gate run as files to read. One format a file in `formats/`, found by its name.

A format has `write(run, folder) -> list[Path]`; one that draws has `PICTURES = True` too. `terminal` draws on a
console; `github` makes annotations. Nothing here loads matplotlib until it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from harness.discover import discover
from harness.gate.records import GateRun
from harness.report.gate.formats import markdown
from harness.report.pictures import draws, write_all
from harness.report.placing import into, placed

SUMMARY = "GITHUB_STEP_SUMMARY"
WORKSPACE = "GITHUB_WORKSPACE"


class GateFormat(Protocol):
    """What a file in `formats/` offers."""

    def write(self, run: GateRun, folder: Path) -> list[Path]:
        """Write the run's files into `folder`, which exists. Gives their paths."""


def write(run: GateRun, folder: Path) -> list[Path]:
    """Write every format of a gate run into its folder, which is made if need be. Gives the paths written.

    Texts are written first. A picture that can't be drawn is a warning on standard error. Raises as `placed` does.
    """
    found = _formats()
    drawing = {name: each for name, each in found.items() if draws(each)}
    texts = {name: each for name, each in found.items() if name not in drawing}

    def write_into(draft: Path, formats: Mapping[str, GateFormat]) -> list[Path]:
        return write_all(formats, lambda each: each.write(run, draft))

    with into(folder):
        (folder / markdown.FIGURE).unlink(missing_ok=True)  # another run's must not stay
    # One after the other: what ends this process while it draws must not cost the texts.
    return [path for each in (texts, drawing) for path in placed(folder, partial(write_into, formats=each))]


def publish(run: GateRun, environ: Mapping[str, str]) -> None:
    """Tell GitHub, where it asks for it: the page as the step's summary, and annotations on standard output.

    `environ` is the process's environment. A summary that can't be written is told in an annotation: it changes nothing
    about how the gate ended.
    """
    from harness.report.gate import github

    workspace = environ.get(WORKSPACE, "")
    lines = github.lines(run, workspace=workspace) if environ.get("GITHUB_ACTIONS") == "true" else []
    if summary := environ.get(SUMMARY):
        try:
            markdown.append(run, Path(summary))
        except OSError as error:
            lines.append(github.command("warning", "summary", f"{summary}: can't be written: {error.strerror}"))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _formats() -> dict[str, GateFormat]:
    """Raises UsageError for a file that lacks what a format must have."""
    return {name: cast(GateFormat, module) for name, module in discover(f"{__name__}.formats", ["write"]).items()}
