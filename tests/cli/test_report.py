"""`harness report` in a folder that somebody else made: nothing outside of it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness import store
from harness.cli import app
from harness.model import Header, Limits, Measurement, StreamPoint

SECRET = "mine\n"


@pytest.fixture
def run_folder(tmp_path: Path, header: Header, measurement: Callable[[int], Measurement]) -> Path:
    folder = tmp_path / "run"
    with store.create(folder, header) as writer:
        writer.append(measurement(4096))
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that isn't the run's, in a folder of its own."""
    file = tmp_path / "home" / "precious"
    file.parent.mkdir()
    file.write_text(SECRET)
    return file


def report(folder: Path, formats: str = "markdown,csv,json") -> Result:
    return CliRunner().invoke(app, ["report", str(folder), f"--format={formats}"])


@pytest.mark.parametrize("name", ["report.md", "results.csv", "results.json"])
def test_a_report_is_not_written_through_a_link(run_folder: Path, outside: Path, name: str) -> None:
    (run_folder / name).symlink_to(outside)
    before = sorted(run_folder.iterdir())
    result = report(run_folder)
    assert result.exit_code == 2
    assert f"error: {run_folder / name} is a link to {outside}, and nothing is written through links" in result.stderr
    assert "remove the link" in result.stderr
    assert outside.read_text() == SECRET
    assert sorted(run_folder.iterdir()) == before


def test_a_link_to_nothing_is_a_link_too(run_folder: Path, outside: Path) -> None:
    (run_folder / "report.md").symlink_to(outside.with_name("new"))
    assert report(run_folder).exit_code == 2
    assert not outside.with_name("new").exists()


def test_plots_that_are_a_link_to_a_folder_are_refused(run_folder: Path, outside: Path) -> None:
    points = tuple(StreamPoint(2**20, 2**20, 1e-4, way, is_copy=way == "memcpy") for way in ("memcpy", "add"))
    content = store.load(run_folder)
    (run_folder / "run.json").write_text(store.dump(replace(content.header, limits=Limits(points))))
    (run_folder / "plots").symlink_to(outside.parent, target_is_directory=True)
    result = report(run_folder, "plots")
    assert result.exit_code == 2
    assert f"error: {run_folder / 'plots'} is a link to {outside.parent}" in result.stderr
    assert list(outside.parent.iterdir()) == [outside]


def test_a_hard_link_is_replaced(run_folder: Path, outside: Path) -> None:
    os.link(outside, run_folder / "report.md")
    assert report(run_folder).exit_code == 0
    assert outside.read_text() == SECRET
    assert (run_folder / "report.md").read_text() != SECRET


def test_a_folder_that_the_user_names_may_be_a_link(run_folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(run_folder, target_is_directory=True)
    result = report(link)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [str(link / name) for name in ("report.md", "results.csv", "results.json")]
    names = {"report.md", "results.csv", "results.json", "results.jsonl", "run.json"}
    assert {file.name for file in run_folder.iterdir()} == names
    assert {(run_folder / name).stat().st_mode & 0o777 for name in names} == {0o666 & ~umask()}


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
