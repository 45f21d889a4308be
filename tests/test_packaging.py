"""What is shipped, and what continuous integration runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness import __version__, scenario
from tests.one_test import one_test

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}
DECLARED = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]


AROUND = {"LICENSE", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "pyproject.toml"}
"""Files that are shipped beside folders."""
whole = pytest.mark.slow
"""Builds both. test_all_files_are_shipped has their files, test_instrument_alone.py a wheel that is built."""


@one_test("line", DECLARED)
def test_a_dependency_has_a_lower_bound_and_a_tested_version_within_it(line: str) -> None:
    requirement = Requirement(line)
    assert any(part.operator == ">=" for part in requirement.specifier)
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_torch_is_the_one_that_was_tested() -> None:
    assert PINS["torch"] == "2.13.0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built from a copy of the tree."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    shutil.copytree(
        ROOT,
        tree,
        ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__", ".*_cache", "reports", "site", "site.source"),
    )
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=tree, check=True)
    return folder


def shipped(*folders: str) -> set[str]:
    """Paths of our files below `folders`, relative to the checkout."""
    return {
        file.relative_to(ROOT).as_posix()
        for folder in folders
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


@pytest.mark.parametrize(
    ("builder", "folders", "bundled", "files"),
    [
        (WheelBuilder, ["harness"], ["kernels", "plans", "scenarios"], set()),
        (SdistBuilder, ["examples", "harness", "kernels", "scenarios", "scripts", "tests"], [], AROUND),
    ],
    ids=["wheel", "sdist"],
)
def test_all_files_are_shipped(
    builder: type[WheelBuilder | SdistBuilder], folders: list[str], bundled: list[str], files: set[str]
) -> None:
    """What is built from the tree, without building it."""
    made_of = {file.distribution_path for file in builder(str(ROOT)).recurse_included_files()}
    data = {f"harness/_data/{name}" for name in shipped(*bundled)}
    assert files | shipped(*folders) | data <= made_of
    assert any(name.startswith("tests/") for name in made_of) == ("tests" in folders)


def test_scenarios_that_an_installed_package_brings_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.paths._PACKAGE", tmp_path / "harness")
    bundled = tmp_path / "harness" / "_data" / "scenarios" / "brought.yaml"
    bundled.parent.mkdir(parents=True)
    bundled.write_text("title: Brought\n")
    assert scenario.find(["brought"]) == [bundled]


@whole
def test_the_wheel_carries_kernels_scenarios_schema_and_templates(built: Path) -> None:
    with zipfile.ZipFile(built / f"gpu_bench_harness-{__version__}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    data = {f"harness/_data/{name}" for name in shipped("kernels", "scenarios")}
    assert "harness/_data/scenarios/schema.json" in data
    assert shipped("harness") | data <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)


@whole
def test_the_sdist_has_all_that_it_takes_to_build_and_test(built: Path) -> None:
    with tarfile.open(built / f"gpu_bench_harness-{__version__}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert AROUND | shipped("examples", "harness", "kernels", "scenarios", "scripts", "tests") <= names


@whole
def test_an_installed_harness_finds_its_scenarios_without_a_checkout(built: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    program = (
        "import harness; from harness import scenario\nprint(harness.__file__); print(scenario.find(['quick'])[0])"
    )
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(site / "harness/__init__.py"), str(site / "harness/_data/scenarios/quick.yaml")]


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make test"
