"""Standard streams that are closed or full: the exit status is the command's, and no file takes their place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import streams
from tests.rare import rare

COMMAND = [sys.executable, "-m", "harness"]


def ended(redirected: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command whose streams the shell redirects."""
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *COMMAND, *arguments]
    return subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("redirected", "arguments", "status"),
    [
        (">&-", ["list"], 0),
        rare("2>&-", ["list"], 0),
        ("<&- >&- 2>&-", ["list", "ops", "--ops=none.py"], 2),
        rare("2>/dev/full", ["list", "ops", "--ops=none.py"], 2),
        rare("2>/dev/full", ["lst"], 2),
        (">/dev/full", ["list"], 4),
        rare(">/dev/full", ["--help"], 4),
    ],
)
def test_a_stream_that_cannot_be_written_is_no_bug_and_no_failed_gate(
    redirected: str, arguments: list[str], status: int, environment: Callable[..., dict[str, str]]
) -> None:
    done = ended(redirected, *arguments, environment=environment())
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stderr == "error: [Errno 28] No space left on device\n") == (status == 4)


@pytest.mark.slow  # the next test has streams that are closed
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What a library prints on standard error would go into the file."""
    program = (
        "import os, sys\n"
        "from harness.cli import streams\n"
        "streams.open_all()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "os.write(2, b'from a library')\n"
        "print('said', file=sys.stderr)\n"
        "sys.exit(file.fileno() <= 2 or os.get_inheritable(2) is False)\n"
    )
    done = subprocess.run(["sh", "-c", 'exec "$@" 2>&- <&-', "sh", sys.executable, "-c", program], check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == ""


def test_what_cannot_be_told_is_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        streams.tell("lost")
        assert Path(f"/proc/self/fd/{full.fileno()}").readlink() == Path(os.devnull)
