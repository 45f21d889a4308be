"""The rule about the software that is installed, and which files say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gate import Evidence
from harness.gate import software as files
from harness.gate.records import UsedCode
from harness.gate.rules import software

PROJECT = "[project]\nname = 'mine'\ndependencies = ['torch>={}']\n[tool.ruff]\nline-length = {}\n"


def test_changed_software_is_undecided() -> None:
    [finding] = software.judge(Evidence("main", (), (), used=UsedCode(software=("uv.lock",))))
    assert (finding.severity, finding.message.endswith(": uv.lock")) == ("undecided", True)
    assert not list(software.judge(Evidence("main", (), (), used=UsedCode())))
    assert not list(software.judge(Evidence("main", (), ())))


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("constraints.txt", True),
        ("ci/requirements-gpu.txt", True),
        ("requirements/base.in", True),
        ("gpu/requirements/h200.txt", True),
        ("uv.lock", True),
        ("docker/Dockerfile", True),
        ("notes.txt", False),
        ("src/lock.py", False),
    ],
)
def test_files_are_known_by_their_names(name: str, counts: bool, tmp_path: Path) -> None:
    assert files.changed([name], tmp_path, tmp_path) == ([name] if counts else [])


@pytest.mark.parametrize(
    ("now", "counts"),
    [(PROJECT.format(2, 120), True), (PROJECT.format(1, 80), False), ("[project", True), (None, True)],
)
def test_a_project_counts_if_it_depends_on_something_else(now: str | None, counts: bool, tmp_path: Path) -> None:
    for side, text in (("base", PROJECT.format(1, 120)), ("now", now)):
        (tmp_path / side).mkdir()
        if text is not None:
            (tmp_path / side / "pyproject.toml").write_text(text)
    found = files.changed(["pyproject.toml"], tmp_path / "base", tmp_path / "now")
    assert found == (["pyproject.toml"] if counts else [])


def test_versions_with_which_the_sides_differ_are_named() -> None:
    before, now = {"driver": "570.1", "torch": "2.12", "gone": "1"}, {"driver": "575.2", "torch": "2.12"}
    versions = tuple(files.differing(before, now))
    assert versions == ("driver 570.1, now 575.2", "gone 1, now none")
    used = UsedCode((("a.py", "1"),), (("a.py", "1"),), complete=True, versions=versions)
    [finding] = software.judge(Evidence("main", (), (), used=used))
    assert finding.severity == "undecided"
    assert "main ran with other software than the working tree: driver 570.1, now 575.2" in finding.message
    assert not used.same


def test_a_side_that_tells_no_software_is_of_an_earlier_harness() -> None:
    assert not list(files.differing({}, {"torch": "2.12"}))
    assert not list(files.differing({"torch": "2.12"}, {"torch": "2.12"}))
