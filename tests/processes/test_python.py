"""Where processes of ours find their modules: the harness that was asked for, and nothing in the working folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.processes import python, start
from harness.processes.supervisor import Workers
from tests.rare import rare

OWN = python.own_root()
EXECUTED = (
    "import os\nopen(os.environ['EXECUTED'], 'a').write(__file__ + chr(10))\nraise SystemExit('the wrong file')\n"
)
"""A module that must not be executed. It tells that it was."""


pytestmark = pytest.mark.cold


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with files that would take the place of modules; `executed` in it names files that did."""
    folder = tmp_path / "here"
    for package in ("harness", "harness/processes"):
        (folder / package).mkdir(parents=True)
    names = ("copy", "json", "typer", "torch", "sitecustomize", "harness/__init__", "harness/processes/__init__")
    for name in names:
        (folder / f"{name}.py").write_text(EXECUTED)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EXECUTED", str(folder / "executed"))
    return folder


def imports(environment: dict[str, str]) -> Any:
    return json.loads(environment[start.VARIABLE])


def test_another_revision_takes_the_place_of_this_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/lib/a", str(OWN), f"{OWN}/tests"])
    told = imports(python.environment(Path("/base")))
    assert told == {"root": "/base", "path": ["/usr/lib/a", None, f"{OWN}/tests"], "refused": str(OWN)}
    told = imports(python.environment())
    assert told == {"root": str(OWN), "path": ["/usr/lib/a", None, f"{OWN}/tests"], "refused": ""}


def test_a_root_that_is_not_on_the_path_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/usr/lib/a"])
    assert imports(python.environment())["path"] == ["/usr/lib/a", None]


@pytest.mark.parametrize("named", ["", str(OWN)])
def test_the_environment_is_as_long_whatever_the_root(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("PYTHONPATH", named)

    def length(root: Path | None) -> int:
        return sum(len(name) + len(value) for name, value in python.environment(root).items())

    roots = [None, OWN, Path("/base"), Path("/a/much/longer/path/to/a/checkout")]
    # PYTHONPATH names this checkout as it is, another one padded.
    assert len({length(root) for root in roots}) == 1 or (named and len({length(root) for root in roots[2:]}) == 1)


@pytest.mark.parametrize("entries", [":", ":/nowhere", "/nowhere:", "/nowhere::/else"])
def test_an_empty_entry_of_pythonpath_is_not_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entries: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", entries)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/usr/lib/a"])
    made = python.environment(Path("/base"))
    assert imports(made)["path"] == ["/usr/lib/a", None]
    assert "" not in made["PYTHONPATH"].split(":") or made["PYTHONPATH"] == ""


def test_a_working_folder_that_the_user_names_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/usr/lib/a"])
    assert imports(python.environment(Path("/base")))["path"] == [str(tmp_path), "/usr/lib/a", None]


@pytest.mark.parametrize("pythonpath", [None, rare(""), rare(":"), ":/nowhere"])
def test_a_process_of_ours_executes_nothing_in_the_working_folder(
    trap: Path, monkeypatch: pytest.MonkeyPatch, pythonpath: str | None
) -> None:
    """Nor does a process that a library starts there."""
    if pythonpath is not None:
        monkeypatch.setenv("PYTHONPATH", pythonpath)
    # As if this process had been started with -m or -c.
    monkeypatch.setattr(sys, "path", ["", str(trap), *sys.path])
    program = "import copy, json, sys; print(sys.path)"
    (trap.parent / "more").mkdir()
    (trap.parent / "more" / "harness").mkdir()
    (trap.parent / "more" / "harness" / "__init__.py").write_text("")
    (trap.parent / "more" / "harness" / "hello.py").write_text(
        "import copy, json, subprocess, sys, harness\n"
        "print(harness.__file__, sys.argv[1:], json.dumps(sys.path), flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {program!r}], check=True)\n"
    )
    command, made = python.command("harness.hello", ["-x"]), python.environment(trap.parent / "more")
    done = subprocess.run(command, env=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (trap / "executed").exists()
    assert done.stdout.startswith(f"{trap.parent}/more/harness/__init__.py ['-x'] ")
    assert f'"{trap}"' not in done.stdout.replace("'", '"')


@pytest.mark.slow  # the test above has a process of ours in such a folder
def test_the_report_of_a_run_needs_nothing_of_the_working_folder(trap: Path) -> None:
    """A copy.py there cost the report; a harness/ was executed in the place of ours."""
    command = python.command("harness", ["list", "formats"])
    done = subprocess.run(command, env=python.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "markdown" in done.stdout
    assert not (trap / "executed").exists()


def test_python_m_harness_leaves_the_working_folder_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `-m` itself imports before can't be helped: `python -P -m harness` is safe, and so is `harness`."""
    (tmp_path / "typer.py").write_text(EXECUTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXECUTED", str(tmp_path / "executed"))
    monkeypatch.setenv("PYTHONPATH", str(OWN))
    done = subprocess.run([sys.executable, "-m", "harness", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_checkout_whose_path_has_a_colon_is_the_one_that_measures(
    revision: Callable[..., Path], job: Callable[..., Any], tmp_path: Path
) -> None:
    made = revision('measured("ok", error=str(ROOT))')
    root = made.rename(tmp_path / "a:b")
    with Workers("cpu", root=root) as workers:
        found = workers.measure(job("fine"))
    assert (found.status, found.error) == ("ok", str(root))


def test_modules_are_found_where_the_parent_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in folders that only this process has on its path, behind a colon."""
    folder = tmp_path / "mine:too"
    folder.mkdir()
    (folder / "mykernels.py").write_text("VALUE = 7\n")
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("")
    (tmp_path / "harness" / "hello.py").write_text("import mykernels\nprint(mykernels.VALUE)\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    command = python.command("harness.hello")
    done = subprocess.run(command, env=python.environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
    assert os.environ.get(start.VARIABLE) is None
