"""The exit code of a command is the command's, though code of others ends its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rare import rare

PROGRAM = """
import atexit, os, sys, threading
from harness.cli import leaving
with leaving.decided():
    {code}
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("os._exit(0)", 2),
        ("atexit.register(os._exit, 0); sys.exit(1)", 1),
        rare("atexit.register(os._exit, 3); sys.exit()", 0),
        rare("atexit.register(os._exit, 0); sys.exit('a text')", 1),
        rare("atexit.register(os._exit, 0); 1 / 0", 1),
        ("atexit.register(os._exit, 3)", 0),
        ("threading.Thread(target=os._exit, args=[0]).start(); threading.Event().wait()", 2),
        ("sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) if os.fork() else os._exit(7))", 7),
    ],
)
def test_no_other_code_decides_how_a_command_ends(tmp_path: Path, code: str, status: int) -> None:
    """As a plug-in that leaves out Python's end, or a thread of it. What was forked ends as it wants."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(code=code))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    assert ("ended this process by os._exit" in done.stderr) == (status == 2)


def test_a_command_is_ended_so() -> None:
    """The whole of it: `main` holds the exit code."""
    program = "import os; from harness import cli; cli._command = lambda: os._exit(0); cli.main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
