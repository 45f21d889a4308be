"""What a killed gate leaves in the cache and in git, and who removes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import source
from harness.gate import left_behind
from harness.gate.worktree import Repository
from tests.gate.foreign import git, write

BOTH_SIDES = Path(__file__).with_name("both_sides.py")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_PACKAGE", tmp_path / "package")  # as both_sides.py does it
    return tmp_path / "cache"


def repository(folder: Path) -> Path:
    git(folder.parent, "init", "--quiet", "--initial-branch=trunk", str(folder))
    write(folder / "mine.py", "")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


def gate(folder: Path, how: str) -> subprocess.Popen[str]:
    """A process that has both sides of a gate; the folders stand on its standard output."""
    command = [sys.executable, str(BOTH_SIDES), str(folder), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_gate_of_another_repository_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    mine, other = repository(tmp_path / "mine"), repository(tmp_path / "other")
    told, _ = gate(mine, "killed").communicate()
    left = [Path(word) for word in told.split()]
    assert all(place.is_dir() for place in left)
    assert git(mine, "worktree", "list").count("\n") == 2
    with Repository.find([other / "mine.py"]).worktree("HEAD", "base"):
        assert not [place for place in left if place.exists()]
        assert git(mine, "worktree", "list").count("\n") == 1


@pytest.mark.slow  # test_worktree.py has two gates at a time
def test_what_a_living_gate_has_stays(tmp_path: Path, cache: Path) -> None:
    mine = repository(tmp_path / "mine")
    with gate(mine, "lives") as living:
        assert living.stdout
        places = [Path(word) for word in living.stdout.readline().split()]
        with Repository.find([mine / "mine.py"]).worktree("HEAD", "base") as second:
            assert second.folder not in places
            assert all(place.is_dir() for place in places)
        assert git(mine, "worktree", "list").count("\n") == 2
        living.communicate("")
    assert git(mine, "worktree", "list").count("\n") == 1


@pytest.mark.slow  # the first test has what is removed
def test_a_repository_that_is_gone_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    mine = repository(tmp_path / "mine")
    gate(mine, "killed").communicate()
    shutil.rmtree(mine)
    left_behind.clean(cache / "worktrees")
    assert not [place for place in (cache / "worktrees").glob("*/*") if place.is_dir()]
