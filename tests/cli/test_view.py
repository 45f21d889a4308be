"""`harness view`: the page of a stored run, in the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness import store
from harness.cli import app
from harness.model import Header, Measurement


@pytest.fixture
def stored(tmp_path: Path, header: Header, measurement: Callable[[int], Measurement]) -> Callable[..., Path]:
    """Stores a run whose samples are `factor` times as long, in a folder of that name."""

    def make(name: str, factor: float = 1.0) -> Path:
        folder = tmp_path / "runs" / name
        made = measurement(4096)
        with store.create(folder, header) as writer:
            writer.append(replace(made, samples=tuple(factor * sample for sample in made.samples)))
        return folder

    return make


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser was asked to open; there is none that opens them."""
    addresses: list[str] = []

    def fail_to_open(address: str) -> bool:
        addresses.append(address)
        return False

    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(webbrowser, "open", fail_to_open)
    return addresses


def view(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["view", *map(str, arguments)])


def test_the_page_lies_in_the_cache_and_the_run_stays_as_it_is(stored: Callable[..., Path], seen: list[str]) -> None:
    folder = stored("one")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    result = view(folder)
    assert result.exit_code == 0, result.output
    page = Path(result.stdout.strip())
    assert page.is_file()
    assert page.parent.name.startswith("one-")
    assert seen == [page.as_uri()]
    assert "no browser could be opened: open the file above in one" in result.stderr
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert view(folder).stdout == result.stdout


def test_two_runs_say_what_changed_since_the_first(stored: Callable[..., Path], seen: list[str]) -> None:
    before, after = stored("before", 2.0), stored("after")
    page = Path(view(before, after).stdout.strip()).read_text(encoding="utf-8")
    changes = page.partition("<section id='changes'>")[2].partition("</section>")[0]
    assert f"Compared with {before}" in changes
    assert "2.000x" in changes
    assert "faster" in changes
    assert len({Path(view(*runs).stdout.strip()) for runs in ((before, after), (after,), (after, before))}) == 3


def test_a_folder_without_a_run_is_refused_and_a_near_one_named(stored: Callable[..., Path], seen: list[str]) -> None:
    folder = stored("norms")
    result = view(folder.with_name("norm"))
    assert result.exit_code == 2
    assert "norm: holds no run (there is no run.json)" in result.stderr
    assert f"did you mean '{folder}'?" in result.stderr
    assert str(folder) in view(folder.parent).stderr
    assert seen == []


def test_where_no_run_lies_near_the_advice_says_what_a_run_is(tmp_path: Path, seen: list[str]) -> None:
    result = view(tmp_path / "nothing" / "here")
    assert result.exit_code == 2
    assert "name a folder that 'harness run' has written" in result.stderr


def test_a_run_that_cannot_be_read_says_why(stored: Callable[..., Path], seen: list[str]) -> None:
    folder = stored("one")
    stored("other")
    (folder / "run.json").write_text("{")
    result = view(folder)
    assert result.exit_code == 2
    assert "did you mean" not in result.stderr


def test_a_page_that_cannot_be_written_says_where_it_would_lie(
    stored: Callable[..., Path], seen: list[str], tmp_path: Path
) -> None:
    folder = stored("one")
    page = Path(view(folder).stdout.strip())
    page.unlink()
    page.symlink_to("/dev/full")
    result = view(folder)
    assert result.exit_code == 4
    assert f"error: can't write the report: {page.parent}: No space left on device" in result.stderr
    assert "free some space" in result.stderr
