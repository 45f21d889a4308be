"""`harness run --resume FOLDER` in a folder that somebody else made: what of its stored command is taken."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.testing import CliRunner, Result

from harness import store
from harness.cli import app, resuming, run
from harness.errors import Exit
from harness.model import Header

Stored = Callable[..., Path]


@pytest.fixture
def stored(tmp_path: Path, header: Header) -> Stored:
    """stored(word, ...): the folder of a run that `harness run` with these words has begun."""

    def store_it(*words: str) -> Path:
        store.create(tmp_path / "run", replace(header, command=("harness", "run", *words))).close()
        return tmp_path / "run"

    return store_it


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A plug-in that leaves a trace where it is executed."""
    file = tmp_path / "evil.py"
    file.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    return file


def resume(folder: Path, *more: object) -> Result:
    return CliRunner().invoke(app, ["run", "--resume", str(folder), *map(str, more)])


@pytest.mark.parametrize("spelled", [["--ops={}"], ["--ops", "{}"]])
def test_a_stored_plug_in_is_not_executed_and_the_command_that_would_is_told(
    stored: Stored, evil: Path, tmp_path: Path, spelled: list[str]
) -> None:
    folder = stored("quick", *(word.format(evil) for word in spelled), "--device=cpu")
    result = resume(folder, "--dry-run")
    assert result.exit_code == Exit.USAGE
    assert f"the run had the plug-ins {evil}, and a stored run doesn't say which code" in result.stderr
    advice = result.stderr.splitlines()[-1]
    assert advice.endswith(shlex.join(["harness", "run", "--resume", str(folder), f"--ops={evil}"]))
    assert not (tmp_path / "executed").exists()
    mine = tmp_path / "mine.py"
    mine.write_text("1 / 0")
    assert "mine.py: ZeroDivisionError" in resume(folder, f"--ops={mine}", "--dry-run").stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("word", ["{}/mine.yaml", "{}", "/dev/zero", "quick/../mine"])
def test_a_stored_scenario_that_is_a_file_is_not_read_and_the_whole_command_is_told(
    stored: Stored, tmp_path: Path, word: str
) -> None:
    word = word.format(tmp_path)
    folder = stored(word, "quick", "--only", "*/a b", "--ops", "mine.py", "--json=x.json", "--output=there")
    result = resume(folder, "--dry-run")
    assert result.exit_code == Exit.USAGE
    assert f"the run was of {word}, and a stored run doesn't say which files are read or executed" in result.stderr
    advice = result.stderr.splitlines()[-1].strip()
    told, _, command = advice.partition(": ")
    assert told == f"if you trust {word}, mine.py"
    whole = ["harness", "run", word, "quick", "--only=*/a b", "--ops=mine.py", f"--output={folder}", "--resume"]
    assert shlex.split(command) == whole


def test_what_is_measured_comes_from_the_folder(stored: Stored) -> None:
    folder = stored("quick", "--device=cpu", "--only", "prelu/eager/*", "--variants=eager", "--repeat", "3")
    result = resume(folder, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "prelu/eager/float32" in result.stdout
    assert "6 measurements on" in result.stdout


def test_a_stored_target_is_not_written_and_is_told(stored: Stored, tmp_path: Path) -> None:
    target = tmp_path / "precious.json"
    target.write_text("mine")
    folder = stored("quick", "--device=cpu", f"--json={target}")
    result = resume(folder, "--dry-run")
    assert result.exit_code == 0
    assert f"note: --json={target} of the stored run isn't written; name it again" in result.stderr
    for given in ("--quiet", "--json=stdout"):
        assert resume(folder, given, "--dry-run").stderr == ""
    assert target.read_text() == "mine"


def test_no_option_that_names_a_path_is_taken() -> None:
    """Which options a stored command brings back is a list, so that a new option isn't brought back by itself."""
    hints = get_type_hints(run.command)
    named = {name for name, hint in hints.items() if "Path" in str(hint)} | {"json", "resume", "scenarios"}
    assert {"ops", "output"} < named
    assert set(resuming._TAKEN) <= hints.keys() - named


@pytest.mark.parametrize("words", [["--help"], ["--output=/elsewhere", "--resume=/elsewhere"], ["--dry-run"]])
def test_other_options_stay_with_who_gave_them(stored: Stored, words: list[str], header: Header) -> None:
    folder = stored("quick", "--device=cpu", "--variants=eager", *words)
    result = resume(folder)
    assert result.exit_code == Exit.USAGE
    assert f"{folder}: can't be resumed: the machine was {header.machine.name}" in result.stderr


def test_a_stored_word_that_would_write_on_the_terminal_is_not_shown(stored: Stored) -> None:
    result = resume(stored("quick", "--ops=\x1b[2Jmine.py"))
    assert result.exit_code == Exit.USAGE
    assert r"has characters that can't be shown: '--ops=\x1b[2Jmine.py'" in result.stderr
    assert "\x1b" not in result.stderr


def test_an_unknown_stored_option_is_an_error_and_no_bug(stored: Stored) -> None:
    assert resume(stored("quick", "--gone")).exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("typed", "scenarios", "told"),
    [
        (["quick", "--json=a.json"], ["quick"], "--resume there"),
        (["quick", "--ops=my ops.py"], ["quick"], "--resume there '--ops=my ops.py'"),
        (["mine.yaml", "--json"], ["mine.yaml"], "mine.yaml --json --output=there --resume"),
    ],
)
def test_an_interrupted_run_tells_a_command_that_goes_on(
    typed: list[str], scenarios: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["harness", "run", *typed])
    ops = [word.partition("=")[2] for word in typed if word.startswith("--ops=")]
    command = resuming.told_command(Path("there"), scenarios, ops, output=None, resume=None)
    assert command == f"harness run {told}"
    monkeypatch.setattr(sys, "argv", ["harness", "run", "--resume", "there"])
    assert resuming.told_command(Path("there"), [], ops, output="", resume="there") == "harness run --resume there"
