"""Folders of commands that were killed are removed, and no other ones."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.processes import scratch
from harness.processes.scratch import Scratch

KILLED = """
import os, signal, sys, tempfile
from harness.processes.scratch import Scratch
tempfile.tempdir = sys.argv[1]
made = Scratch("judging")
(made.path / "inputs").write_text("large")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_as_long_as_its_context(temporary: Path) -> None:
    with scratch.folder("judging") as made:
        assert (made.parent, made.stat().st_mode & 0o777) == (temporary, 0o700)
    assert not list(temporary.iterdir())


def test_what_a_kill_left_the_next_one_removes(temporary: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(temporary)], check=False)
    [left] = temporary.iterdir()
    assert (done.returncode, (left / "inputs").read_text()) == (-9, "large")
    made = Scratch("ranks")
    assert list(temporary.iterdir()) == [made.path]
    made.remove()
    made.remove()


def test_a_living_owner_s_folder_and_folders_of_others_stay(temporary: Path) -> None:
    """Also one that has no lock yet, since it is just being made, and one of another program."""
    for name in ("harness-page-1", "harness-ranks-made", "others-judging-1"):
        (temporary / name).mkdir()
    (temporary / "harness-ranks-made" / ".owner.draft").touch()
    (temporary / "harness-link-1").symlink_to(temporary / "others-judging-1")
    before = {*temporary.iterdir()}
    with scratch.folder("judging") as made:
        scratch.prune()
        assert {*temporary.iterdir()} == {*before, made}
    assert {*temporary.iterdir()} == before
