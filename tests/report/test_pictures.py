"""A picture that can't be drawn costs neither the results nor the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import cli, report, store
from harness.model import Limits, Machine, Run
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
    assert told.count("warning: ") == 3


def test_the_limits_of_a_machine_are_written_without_their_picture(
    gpu: Machine, limits: Limits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limit_tables, "draw", fail)
    assert [path.name for path in report.write_limits(gpu, limits, tmp_path)] == ["peak.md", "peak.csv"]
    assert "warning: peak.svg can't be drawn" in capsys.readouterr().err


def test_harness_report_ends_with_0_where_a_picture_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load", lambda folder: run)
    monkeypatch.setattr(charts, "draw", fail)
    ended = CliRunner().invoke(cli.app, ["report", str(tmp_path)])
    assert ended.exit_code == 0
    assert {*TEXTS, "plots", "report.html"} == {path.name for path in tmp_path.iterdir()}
    assert "warning: plots/prelu-float32.svg can't be drawn" in ended.stderr
