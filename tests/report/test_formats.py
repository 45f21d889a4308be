from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from harness import report
from harness.errors import MachineError, UsageError
from harness.model import Limits, Machine, Run
from harness.report import formats, gate
from harness.report.gate import formats as gate_formats


def test_each_format_says_in_one_line_what_it_writes() -> None:
    found = report.every_format()
    assert list(found) == ["csv", "html", "json", "markdown", "plots", "png"]
    assert all(module.SUMMARY and "\n" not in module.SUMMARY for module in found.values())


def test_all_formats_are_written_unless_some_are_named(run: Run, tmp_path: Path) -> None:
    paths = report.write(run, tmp_path / "all")
    assert {path.relative_to(tmp_path / "all").as_posix() for path in paths} == {
        "results.csv",
        "results.json",
        "report.md",
        "report.html",
        *(f"plots/{name}.svg" for name in FIGURES),
    }
    assert all(path.stat().st_size > 0 for path in paths)
    assert report.write(run, tmp_path / "one", ["csv"]) == [tmp_path / "one" / "results.csv"]


FIGURES = ("prelu-float32", "prelu-float16", "copy-float32", "ceilings")


def test_an_unknown_format_is_refused_with_the_nearest_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report format named 'plot'") as caught:
        report.write(run, tmp_path / "run", ["csv", "plot"])
    assert caught.value.advice == "did you mean 'plots'?"
    assert not (tmp_path / "run").exists()


def test_a_format_that_calls_sys_exit_is_an_error_that_names_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "every_format", lambda: {"leaving": SimpleNamespace(write=lambda *_: sys.exit(0))})
    with pytest.raises(UsageError, match="report format 'leaving': SystemExit: 0"):
        report.write(run, tmp_path, ["leaving"])


def test_limits_are_not_written_through_a_link(machine: Machine, tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.write_text("mine")
    (tmp_path / "peak").mkdir()
    (tmp_path / "peak" / "peak.md").symlink_to(outside)
    with pytest.raises(UsageError, match=r"peak\.md is a link to"):
        report.write_limits(machine, Limits(), tmp_path / "peak")
    assert outside.read_text() == "mine"


def test_a_full_disk_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report.md").symlink_to("/dev/full")
    with pytest.raises(MachineError, match=r"can't write the report: .*No space left on device") as caught:
        report.write(run, tmp_path, ["markdown"])
    assert "free some space" in caught.value.advice


def test_a_report_that_has_no_room_beside_its_run_is_written_later(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "report.md").symlink_to("/dev/full")
    with pytest.raises(MachineError) as caught:
        report.write(run, folder, ["markdown"])
    assert caught.value.advice.endswith(f"then: harness report '{folder}'")


def test_a_folder_that_cannot_be_made_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="Not a directory"):
        report.write(run, tmp_path / "file" / "run", ["csv"])


@pytest.mark.slow  # the next test has the ceilings alone
def test_a_run_stopped_before_its_first_case_still_has_a_report(run: Run, tmp_path: Path) -> None:
    nothing = Run(run.header, ())
    paths = report.write(nothing, tmp_path)
    assert "no case was measured" not in (tmp_path / "report.md").read_text()
    assert "14 not measured" in (tmp_path / "report.md").read_text()
    assert sum(os.fspath(path).endswith(".svg") for path in paths) == 1


def test_the_ceilings_alone_make_a_page_a_table_and_a_plot(gpu: Machine, limits: Limits, tmp_path: Path) -> None:
    paths = report.write_limits(gpu, limits, tmp_path / "peak")
    assert [path.name for path in paths] == ["peak.md", "peak.csv", "peak.svg"]
    assert all(path.stat().st_size > 0 for path in paths)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[ModuleType, str], None]]:
    """Puts a file into a place of formats: there is nothing else in it while the test runs."""
    name = "added_by_a_test"

    def add(package: ModuleType, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.setattr(package, "__file__", str(tmp_path / "__init__.py"))
        monkeypatch.setattr(package, "__path__", [str(tmp_path)])

    yield add
    for package in (formats, gate_formats):
        sys.modules.pop(f"{package.__name__}.{name}", None)


def test_a_format_is_one_file(added: Callable[[ModuleType, str], None], run: Run, tmp_path: Path) -> None:
    added(formats, "SUMMARY = 'a line'\ndef write(run, folder, notes): return [folder / run.header.name, *notes]\n")
    assert list(report.every_format()) == ["added_by_a_test"]
    assert report.write(run, tmp_path, notes=["a note"]) == [tmp_path / "a-run", "a note"]


@pytest.mark.parametrize(("text", "missing"), [("SUMMARY = 'a line'", "write"), ("def write(): ...", "SUMMARY")])
def test_a_format_without_what_it_must_offer_is_an_error(
    added: Callable[[ModuleType, str], None], run: Run, tmp_path: Path, text: str, missing: str
) -> None:
    added(formats, text)
    with pytest.raises(UsageError, match=rf"added_by_a_test.py: defines no {missing}"):
        report.write(run, tmp_path / "run", ["markdown"])


def test_a_format_of_the_gate_that_cannot_write_is_an_error(
    added: Callable[[ModuleType, str], None], tmp_path: Path
) -> None:
    added(gate_formats, "SUMMARY = 'a line'")
    with pytest.raises(UsageError, match=r"added_by_a_test.py: defines no write"):
        gate.write(None, tmp_path)
