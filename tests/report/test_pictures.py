"""A picture that can't be drawn costs neither the results nor the exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import cli, report, store
from harness.model import Limits, Machine, Measurement, Run
from harness.report import charts, limit_tables

TEXTS = ["results.csv", "results.json", "report.md"]


def fail(*_: Any, **__: Any) -> Any:
    raise ValueError("slice step cannot be zero")


def test_texts_are_on_the_disk_before_the_first_picture(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def draw(*_: Any) -> list[Path]:
        seen.append({path.name for path in tmp_path.iterdir() if path.is_file()})
        return []

    monkeypatch.setattr(charts, "draw", draw)
    monkeypatch.setattr(limit_tables, "draw", draw)
    report.write(run, tmp_path, ["plots", "markdown", "json", "csv"])
    assert seen == [set(TEXTS)] * 4


@pytest.mark.slow
def test_a_run_whose_pictures_fail_has_all_its_texts_and_a_warning_for_each(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(charts, "draw", fail)
    paths = report.write(run, tmp_path)
    # One failing picture doesn't cost the next.
    assert [path.name for path in paths] == [*TEXTS, "ceilings.svg", "report.html"]
    assert all(path.stat().st_size for path in paths)
    told = capsys.readouterr().err
    first = "warning: plots/prelu-float32.svg can't be drawn; all other files are written: ValueError: slice step"
    assert first in told
    assert told.count("warning: ") == 4, "the plots of two scenarios, limits, and the page's picture of what is worst"


def test_the_limits_of_a_machine_are_written_without_their_picture(
    gpu: Machine, limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limit_tables, "draw", fail)
    assert [path.name for path in report.write_limits(gpu, limits, tmp_path)] == ["peak.md", "peak.csv"]
    assert "warning: peak.svg can't be drawn" in capsys.readouterr().err


@pytest.mark.slow
def test_png_is_written_only_if_it_is_asked_for(
    run: Run,
    measured: Callable[..., Measurement],
    make_run: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        for drawing in (charts, limit_tables):
            patch.setattr(drawing, "draw", lambda *arguments: [arguments[-1]])
        usual = report.write(run, tmp_path / "usual")
    assert {path.suffix for path in usual} == {".csv", ".json", ".md", ".svg", ".html"}
    paths = report.write(make_run([measured("eager", "float32", (("N", 64),))]), tmp_path / "asked", ["png"])
    assert len(paths) == 2
    assert {path.suffix for path in paths} == {".png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_slides_show_the_variants_that_were_chosen_and_leave_the_report_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load", lambda folder: run)
    ended = CliRunner().invoke(cli.app, ["report", str(tmp_path), "--variants", "eager,tuned"])
    assert ended.exit_code == 0, ended.output
    assert [path.name for path in tmp_path.iterdir()] == [report.SLIDES]
    shown = (tmp_path / report.SLIDES / "plots" / "prelu-float32.svg").read_text()
    assert ">eager<" in shown
    assert ">tuned<" in shown
    assert ">a|b<" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--variants", "tune"], "the run has no variant 'tune'"),
        (["--variants", "tuned", "--format", "csv"], "'csv' is no format of pictures"),
    ],
)
def test_slides_that_can_t_be_drawn_are_refused(
    options: list[str], message: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load", lambda folder: run)
    ended = CliRunner().invoke(cli.app, ["report", str(tmp_path), *options])
    assert ended.exit_code == 2
    assert message in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # test_sections.py has a picture that costs only itself
def test_harness_report_ends_with_0_where_a_picture_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load", lambda folder: run)
    monkeypatch.setattr(charts, "draw", fail)
    ended = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert ended.exit_code == 0
    assert {*TEXTS, "plots", "report.html"} == {path.name for path in tmp_path.iterdir()}
    assert "warning: plots/prelu-float32.svg can't be drawn" in ended.stderr
