"""A run's report, written by another process: matplotlib would double the memory of this one."""

from __future__ import annotations

import importlib
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.processes import python

_LOADED = ("matplotlib.figure", "pandas")
"""What a short report spends much of its time on."""


class Apart:
    """The process that writes the report of the run in a folder, in every format."""

    def __init__(self, folder: Path, plugins: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._arguments = ["report", str(folder), *(part for file in plugins for part in ("--ops", str(file)))]
        self._begun: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the process ahead: it loads libraries, and waits for `write`. It ends with this process."""
        command = python.command(__name__, self._arguments)
        self._begun = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=python.environment()
        )

    def write(self) -> int:
        """Write the report. Gives the exit code of the process."""
        if self._begun:
            self._begun.communicate(b"\n")
            return self._begun.returncode
        command = python.command("harness", self._arguments)
        return subprocess.run(command, stdout=subprocess.DEVNULL, env=python.environment(), check=False).returncode


def write_apart(folder: Path, plugins: Sequence[Path] = ()) -> int:
    """Write the report of the run in a folder, in every format. Gives the exit code of the process."""
    return Apart(folder, plugins).write()


def main() -> None:
    """Load what a report needs, and go on as `harness` when a line comes; end without one."""
    # Ctrl-C is for the run, which a report that nobody has asked for yet must not answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _LOADED:
        with suppress(ImportError):  # the report says what is missing
            importlib.import_module(name)
    if sys.stdin.readline():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module("harness", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
