"""A run's report, written by another process: matplotlib would double the memory of this one."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.processes import python


def write_apart(folder: Path, plugins: Sequence[Path] = ()) -> int:
    """Write the report of the run in a folder, in every format. Gives the exit code of the process."""
    known = [argument for plugin in plugins for argument in ("--ops", str(plugin))]
    command = python.command("harness", ["report", str(folder), *known])
    return subprocess.run(command, stdout=subprocess.DEVNULL, env=python.environment(), check=False).returncode
