from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import MachineError
from harness.gate.records import GateRun
from harness.report import gate
from harness.report.gate.formats import markdown


def test_writes_every_format_into_a_folder_that_it_makes(gate_run: GateRun, tmp_path: Path) -> None:
    written = gate.write(gate_run, tmp_path / "a" / "b")
    assert {path.name for path in written} == {"gate.json", "gate.md", "junit.xml", "pairs.png", "pairs.svg"}
    assert all(path.stat().st_size for path in written)
    again = gate.write(gate_run, tmp_path / "c")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]


def test_json_gives_the_run_back(gate_run: GateRun, tmp_path: Path) -> None:
    gate.write(gate_run, tmp_path)
    assert store.parse(GateRun, (tmp_path / "gate.json").read_bytes()) == gate_run


def test_a_run_without_pairs_has_no_figure(gate_run: GateRun, tmp_path: Path) -> None:
    refused = replace(gate_run, cases=(), findings=(), refused=("the machines differ",))
    assert {path.name for path in gate.write(refused, tmp_path)} == {"gate.json", "gate.md", "junit.xml"}
    page = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert "**Can't be compared**: the machines differ" in page
    assert "pairs.png" not in page


def test_a_folder_that_can_not_be_made_is_one_sentence(gate_run: GateRun, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="can't write the report"):
        gate.write(gate_run, tmp_path / "file" / "gate")


def test_publishes_where_github_asks_for_it(
    gate_run: GateRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.publish(gate_run, {})
    gate.publish(gate_run, {"GITHUB_ACTIONS": "false"})
    assert capsys.readouterr().out == ""
    summary = tmp_path / "summary"
    gate.publish(gate_run, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text(encoding="utf-8") == markdown.page(gate_run)
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in printed] == ["::error"] * 3 + ["::warning"]


def test_a_summary_that_can_not_be_written_is_told_and_no_more(
    gate_run: GateRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate.publish(gate_run, {"GITHUB_STEP_SUMMARY": str(tmp_path)})
    assert capsys.readouterr().out == (
        f"::warning title=gate%2C summary::{tmp_path}: can't be written: Is a directory\n"
    )


def test_the_terminal_and_annotations_load_neither_matplotlib_nor_pandas() -> None:
    code = (
        "import sys; from harness.report.gate import github, terminal; "
        "print(sorted({'matplotlib', 'pandas', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
