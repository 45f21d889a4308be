"""What `make` runs, with tools that only tell that they were run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[0].split()
TOOLS = ("harness", "mypy", "pip", "pytest", "python", "ruff")


class Checkout:
    """A folder with the Makefile, and with an installation whose tools are scripts of the shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / ".venv" / "bin"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)

    def install(self, **scripts: str) -> None:
        """Each tool prints its name. scripts: what a tool does then."""
        self.bin.mkdir(parents=True)
        for name in TOOLS:
            tool = self.bin / name
            tool.write_text(f"#!/bin/sh\necho {name} >> {self.folder}/told\n{scripts.get(name, '')}\n")
            tool.chmod(0o700)
        (self.bin.parent / ".ready").touch()

    def make(self, *arguments: str, keeps: tuple[int, ...] = ()) -> subprocess.Popen[str]:
        """Start `make` as a shell does: without what a make around the tests has exported, and in a group of its own.

        keeps: descriptors that the tools can use.
        """
        return subprocess.Popen(
            ["make", f"PYTHON={sys.executable}", "TEST_JOBS=1", *arguments],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"]},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=keeps,
            start_new_session=True,
        )

    @property
    def told(self) -> list[str]:
        """The tools that were run."""
        file = self.folder / "told"
        return file.read_text(encoding="utf-8").split() if file.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_an_old_python_is_told_from_a_python_that_will_do(checkout: Checkout) -> None:
    done = checkout.make("PYTHON=false", "bench")
    error = done.communicate()[1]
    assert done.returncode == 2
    assert "Python 3.11 or later is needed; 'false' isn't that. Name one: make PYTHON=python3.12 bench" in error
    assert not checkout.bin.exists()


def test_a_dry_run_prints_commands_and_runs_none(checkout: Checkout) -> None:
    checkout.install()
    printed, error = checkout.make("-n", *TARGETS).communicate()
    assert error == ""
    assert checkout.told == []
    assert checkout.bin.exists()
    for tool in ("harness run", "mypy", "pip install", "pytest -n", "python scripts", "ruff check"):
        assert f".venv/bin/{tool}" in printed


@pytest.mark.parametrize(
    ("scripts", "status", "shown"),
    [
        ({}, 0, "tests\n"),
        ({"mypy": "echo a type; exit 1"}, 2, "tests\na type\n"),
        ({"ruff": "echo a name; exit 1"}, 2, "tests\na name\n"),
        ({"pytest": "echo tests; exit 1", "mypy": "echo a note"}, 2, "tests\na note\n"),
    ],
    ids=["fine", "types", "names", "tests"],
)
def test_what_lint_finds_is_shown_after_the_tests(
    checkout: Checkout, scripts: dict[str, str], status: int, shown: str
) -> None:
    checkout.install(**{"pytest": "echo tests"} | scripts)
    done = checkout.make("test")
    assert done.communicate()[0] == shown
    assert done.returncode == status
    assert ("mypy" in checkout.told) == ("ruff" not in scripts)


def test_an_interrupt_ends_tests_and_lint(checkout: Checkout) -> None:
    """Each tool waits for a line that nobody writes. One that outlives make is woken up, and tells that it lives."""
    never = checkout.folder / "never"
    os.mkfifo(never)
    read, write = os.pipe()
    told = f"/proc/self/fd/{write}"
    waits = f"echo waits > {told}; read -r _ < {never}; echo lives > {told}"
    checkout.install(mypy=waits, pytest=waits)
    done = checkout.make("test", keeps=(write,))
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as ends:
        assert [ends.readline() for _ in range(2)] == ["waits\n"] * 2
        os.killpg(done.pid, signal.SIGINT)
        done.communicate()
        with suppress(OSError):  # no tool waits
            os.close(os.open(never, os.O_WRONLY | os.O_NONBLOCK))
        assert ends.read() == ""
    assert done.returncode  # 2, or the signal: make may learn of its own first, or of what its shell answered
