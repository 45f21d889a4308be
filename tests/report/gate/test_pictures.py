"""A picture that can't be drawn costs neither the verdict nor the files of a gate run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli import gate as gate_command
from harness.gate.records import GateRun
from harness.report import gate
from harness.report.gate.formats import plot
from tests.rare import rare


@pytest.mark.parametrize("error", [ValueError, *map(rare, (OSError, MemoryError, RecursionError))])
def test_a_gate_whose_picture_fails_keeps_its_files_and_its_exit_code(
    error: type[Exception],
    gate_run: GateRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any) -> None:
        assert (tmp_path / "gate.json").stat().st_size
        raise error("no")

    monkeypatch.setattr(plot, "_scale", broken)
    (tmp_path / "pairs.png").write_text("that of another run")
    assert gate_command._finish(gate_run, tmp_path) == gate_run.exit == 1
    assert {path.name for path in tmp_path.iterdir()} == {"gate.json", "gate.md", "junit.xml"}
    assert f"warning: the pictures can't be drawn; all other files are written: {error.__name__}: no" in (
        capsys.readouterr().err
    )


def test_a_matplotlib_that_cannot_be_loaded_is_a_warning_too(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert [path.name for path in gate.write(gate_run, tmp_path)] == ["gate.json", "junit.xml", "gate.md"]
    assert "ModuleNotFoundError" in capsys.readouterr().err


def test_ctrl_c_while_a_picture_is_drawn_stops(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plot, "_scale", stopped)
    with pytest.raises(KeyboardInterrupt):
        gate.write(gate_run, tmp_path)
