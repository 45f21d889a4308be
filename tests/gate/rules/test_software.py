"""The rule about the software that is installed, and which files say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gate import Evidence
from harness.gate import software as files
from harness.gate.records import UsedCode
from harness.gate.rules import software
from tests.gate.foreign import write
from tests.one_test import one_test

IN_SETUP = ("install_requires", "setup_requires", "python_requires")
PROJECT = "[project]\nname = 'mine'\ndependencies = ['torch>={}']\n[tool.ruff]\nline-length = {}\n"


def test_changed_software_is_undecided() -> None:
    [finding] = software.judge(Evidence("main", (), (), used=UsedCode(software=("uv.lock",))))
    assert (finding.severity, finding.message.endswith(": uv.lock")) == ("undecided", True)
    assert not list(software.judge(Evidence("main", (), (), used=UsedCode())))
    assert not list(software.judge(Evidence("main", (), ())))


@one_test(
    ("name", "counts"),
    [
        *((name, True) for name in (
            "constraints.txt", "dev-constraints.in", "ci/requirements-gpu.txt", "requirements.in",
            "requirements/base.txt", "gpu/requirements/h200.in", "uv.lock", "bun.lockb", "js/package-lock.json",
            "conda-lock.yml", "environment-gpu.yml", "environment.yaml", "pylock.dev.toml", "pixi.toml", "Pipfile",
            ".python-version", ".tool-versions", "docker/Dockerfile.gpu", "docker/gpu.dockerfile", "Containerfile",
        )),
        *((name, False) for name in (
            "notes.txt", "src/lock.py", "requirements.md", "requirements/gpu/notes.txt", "src/pixi.toml.py",
        )),
    ],
)  # fmt: skip
def test_files_are_known_by_their_names(name: str, counts: bool) -> None:
    assert files.changed([name], Path("base"), Path("now")) == ([name] if counts else [])


@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({"GITHUB_WORKFLOW_REF": "a/b/.github/workflows/gate.yml@refs/pull/1/merge"}, [".github/workflows/gate.yml"]),
        ({"CI_CONFIG_PATH": "ci/gate.yml"}, ["ci/gate.yml"]),
        ({}, []),
    ],
)
def test_the_file_of_the_job_that_runs_now_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], counts: list[str]
) -> None:
    """Not that of other jobs, nor a new one. It says with which image both sides run, and which scenarios are gated."""
    for name in ("GITHUB_WORKFLOW_REF", "CI_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    changed = [".github/workflows/gate.yml", ".github/workflows/docs.yml", "ci/gate.yml"]
    assert files.changed(changed, tmp_path, Path("now")) == []
    for name in changed:
        write(tmp_path / name, "")
    assert files.changed(changed, tmp_path, Path("now")) == counts


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


@pytest.mark.parametrize(
    ("name", "before", "now", "counts"),
    [
        ("pyproject.toml", "[project]\ndependencies = []\n", "[project]\ndependencies = ['a']\n", True),
        ("pyproject.toml", "[project.optional-dependencies]\nx = []\n", "[project.optional-dependencies]\n", True),
        ("pyproject.toml", "[project]\nrequires-python = '>=3.11'\n", "[project]\nrequires-python = '>=3.12'\n", True),
        ("pyproject.toml", "[build-system]\nrequires = []\n", "[build-system]\nrequires = ['a']\n", True),
        ("pyproject.toml", "[dependency-groups]\nx = []\n", "[dependency-groups]\nx = ['a']\n", True),
        *(("pyproject.toml", f"[tool.{of}]\nx = 1\n", f"[tool.{of}]\nx = 2\n", True) for of in ("uv", "poetry", "pdm")),
        ("pyproject.toml", "[project]\nversion = '1'\n", "[project]\nversion = '2'\n", False),
        ("pyproject.toml", "[build-system]\nx = 1\n[tool]\na = 1\n", "[build-system]\nx = 2\n[tool]\na = 2\n", False),
        *(("setup.cfg", f"[options]\n{key} = a\n", f"[options]\n{key} = b\n", True) for key in IN_SETUP),
        ("setup.cfg", "[options.extras_require]\nx = a\n", "[options.extras_require]\nx = b\n", True),
        ("setup.cfg", "[options]\nzip_safe = 1\n", "[options]\nzip_safe = 0\n[metadata]\nx = 1\n", False),
        ("setup.cfg", "[options", "[options]\n", False),
        *(("setup.py", f"setup({key}=['a'])", f"import a\na.setup({key}=['b'])", True) for key in IN_SETUP),
        ("setup.py", "setup(extras_require={})", "setup(extras_require={'x': ['a']})", True),
        ("setup.py", "setup(version='1')", "setup(version='2')\nother(install_requires=1)", False),
        ("setup.py", "setup(", "setup()", False),
    ],
)  # fmt: skip
def test_what_a_project_needs_is_told_from_what_else_it_says(
    name: str, before: str, now: str, counts: bool, tmp_path: Path
) -> None:
    for side, text in (("base", before), ("now", now)):
        (tmp_path / side / "in").mkdir(parents=True)
        (tmp_path / side / "in" / name).write_text(text)
    found = files.changed([f"in/{name}"], tmp_path / "base", tmp_path / "now")
    assert found == ([f"in/{name}"] if counts else [])


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
