"""A plug-in that would end, block or flood the command is loaded in a forked process first, and refused by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness import trial
from harness.errors import Exit, UsageError
from harness.ops import Catalogue

GOOD = "from harness.ops import Op\nOP = Op('mine', 'y = x', {'N': 'elements'})\n"


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """What a command does meanwhile: the processes that it forks."""
    made: list[int] = []
    fork = os.fork

    def counted() -> int:
        if process := fork():
            made.append(process)
        return process

    monkeypatch.setattr(os, "fork", counted)
    monkeypatch.setattr(trial, "_passed", set())
    with trial.wanted():
        yield made


def plugin(folder: Path, text: str) -> Path:
    file = folder / "mine.py"
    file.write_text(text)
    return file


FATAL = [
    ("import ctypes\nctypes.string_at(0)\n", r"kills the process that loads it: signal SIGSEGV \(.*mine\.py:2 in "),
    ("import os\nos.abort()\n", r"kills the process that loads it: signal SIGABRT \(.*mine\.py:2 in "),
    ("import os\nos._exit(0)\n", r"ends the process that loads it, with exit status 0$"),
    ("import os\nos.closerange(0, 100)\nos._exit(3)\n", r"ends the process that loads it, with exit status 3$"),
    ("import os\nwhile True:\n    os.write(1, bytes(9999))\n", r"prints more than 1 MiB .* \(.*mine\.py:3 in "),
    ("import sys\nwhile True:\n    print('x' * 9999, file=sys.stderr)\n", r"prints more than 1 MiB while it is loaded"),
]


@pytest.mark.parametrize(("text", "found"), FATAL, ids=[text for text, _ in FATAL])
def test_what_would_end_the_command_is_an_error_that_names_the_file(
    tmp_path: Path, forks: list[int], text: str, found: str
) -> None:
    with pytest.raises(UsageError, match=rf"mine\.py: {found}"):
        Catalogue([plugin(tmp_path, text)])
    with pytest.raises(ChildProcessError):
        os.waitpid(forks[0], os.WNOHANG)


def test_an_endless_import_is_bounded(tmp_path: Path, forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_LIMIT", 0.0)
    with pytest.raises(UsageError, match=r"mine\.py: isn't loaded within 0 s"):
        Catalogue([plugin(tmp_path, "while True:\n    pass\n")])


def test_a_user_is_told_once_what_takes_long(tmp_path: Path, forks: list[int], monkeypatch, capsys) -> None:
    assert "mine" in Catalogue([plugin(tmp_path, GOOD)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(trial, "_PATIENCE", -1.0)
    file = plugin(tmp_path, f"{GOOD}# changed\n")
    assert "mine" in Catalogue([file])
    assert capsys.readouterr().err == f"{file}: is still being loaded; 120 s are the most\n"


def test_threads_of_an_import_do_not_keep_its_process(tmp_path: Path, forks: list[int]) -> None:
    waits = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    with pytest.raises(UsageError, match="exit status 4"):
        Catalogue([plugin(tmp_path, f"{waits}import os\nos._exit(4)\n")])
    assert "mine" in Catalogue([plugin(tmp_path, f"{GOOD}{waits}")])


def test_a_good_file_is_tried_once_and_again_when_it_has_changed(tmp_path: Path, forks: list[int]) -> None:
    file = plugin(tmp_path, GOOD)
    assert "mine" in Catalogue([file])
    assert "mine" in Catalogue([file])
    assert len(forks) == 1
    plugin(tmp_path, f"{GOOD}import os\nos._exit(0)\n")
    with pytest.raises(UsageError, match="ends the process"):
        Catalogue([file])


def test_without_a_plugin_nothing_is_forked(forks: list[int]) -> None:
    assert "prelu" in Catalogue()
    assert forks == []


def test_who_is_no_command_forks_nothing(tmp_path: Path, forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_wanted", False)
    assert "mine" in Catalogue([plugin(tmp_path, GOOD)])
    assert forks == []


def test_what_a_plugin_raises_is_told_as_ever(tmp_path: Path, forks: list[int]) -> None:
    with pytest.raises(UsageError, match=r"mine\.py: ZeroDivisionError: division by zero \(.*mine\.py:1 in <module>"):
        Catalogue([plugin(tmp_path, "1 / 0\n")])
    with pytest.raises(KeyboardInterrupt):
        Catalogue([plugin(tmp_path, "raise KeyboardInterrupt\n")])
    assert len(forks) == 2


def test_what_a_plugin_prints_and_reads_is_not_the_command_s(
    tmp_path: Path, forks: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"{GOOD}import sys\nprint('said', len(sys.stdin.read()) if sys.stdin else 0)\n"
    with trial.wanted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", None)
        Catalogue([plugin(tmp_path, text)])
    assert capfd.readouterr().out == "said 0\n"


def test_an_entry_point_of_another_package_is_named(
    tmp_path: Path, forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos._exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("theirs", "deadly", "harness.ops")
    monkeypatch.setattr("harness.discover.installed_entry_points", lambda group: [entry])
    with pytest.raises(UsageError, match=r"entry point 'theirs' \(deadly\): ends the process that loads it"):
        Catalogue()


@pytest.mark.slow  # the first test has that error, cli/test_requests.py the status of a command
def test_a_command_ends_with_2(tmp_path: Path) -> None:
    file = plugin(tmp_path, "import ctypes\nctypes.string_at(0)\n")
    command = [sys.executable, "-m", "harness", "check", f"--ops={file}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith(f"error: {file}: kills the process that loads it: signal SIGSEGV (")
