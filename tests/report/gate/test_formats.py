from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from harness import store
from harness.errors import MachineError, UsageError
from harness.gate.records import CaseEvidence, Finding, GateRun
from harness.model import Case
from harness.report import gate
from harness.report.gate import content, terminal
from harness.report.gate.formats import json, junit, markdown, plot


def test_writes_every_format_into_a_folder_that_it_makes(gate_run: GateRun, tmp_path: Path) -> None:
    written = gate.write(gate_run, tmp_path / "a" / "b")
    assert {path.name for path in written} == {"gate.json", "gate.md", "junit.xml", "pairs.png"}
    assert all(path.stat().st_size for path in written)
    again = gate.write(gate_run, tmp_path / "c")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]


def test_a_case_is_looked_at_once_for_all_findings(
    make_gate: Callable[..., GateRun],
    evidence: Callable[..., CaseEvidence],
    case: Callable[..., Case],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gate may have 20,000 cases, with a finding about each."""
    asked: list[Case] = []
    found = Case.id.func  # type: ignore[attr-defined]

    def counted(one: Case) -> str:
        asked.append(one)
        return str(found(one))

    def looked(number: int) -> int:
        cases = [case("prelu", shape=(("N", n),)) for n in range(number)]
        run = make_gate([evidence(one) for one in cases], [Finding("work", "note", "more", case=one) for one in cases])
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Case, "id", property(counted))
            rows = content.rows(run)
        assert [len(row.findings) for row in rows] == [1] * number
        return len(asked)

    assert looked(40) == 2 * looked(20)


def test_the_records_are_written_piece_by_piece_as_they_are_dumped(gate_run: GateRun, tmp_path: Path) -> None:
    run = replace(gate_run, command=("harness", "gate", "\udc80"))
    [path] = json.write(run, tmp_path)
    assert path.read_text(encoding="utf-8") == f"{store.dump(run, indent=2)}\n"


def test_what_is_accepted_stands_in_every_output(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuple(replace(f, severity="accepted") if f.rule == "missing" else f for f in gate_run.findings)
    now = replace(gate_run.now, repository="/home/me/mykern")
    run = replace(gate_run, findings=found, accept=("missing", "work"), now=now)
    monkeypatch.setattr(gate, "_formats", lambda: {"json": json, "junit": junit, "markdown": markdown})
    gate.write(run, tmp_path)
    gate.publish(run, {gate.SUMMARY: str(tmp_path / "summary.md"), "GITHUB_ACTIONS": "true"})
    drawn = io.StringIO()
    terminal.render(run, Console(file=drawn, width=200))
    total = "accepted with --accept: missing (2 findings), work (none found)"
    for text in (drawn.getvalue(), *((tmp_path / name).read_text() for name in ("gate.md", "summary.md"))):
        assert total in text
        assert "accepted (missing)" in text
        assert "/home/me/mykern" in text
    assert "missing (accepted)" in drawn.getvalue()
    assert store.parse(GateRun, (tmp_path / "gate.json").read_bytes()).accept == ("missing", "work")
    xml = (tmp_path / "junit.xml").read_text()
    assert '<property name="accepted" value="missing, work" />' in xml
    assert '<property name="repository" value="/home/me/mykern" />' in xml
    assert xml.count('<skipped message="accepted: ') == 2
    assert capsys.readouterr().out.count("::warning title=gate%2C missing::accepted: ") == 2


def test_a_format_that_calls_sys_exit_is_an_error_that_names_it(
    gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_formats", lambda: {"leaving": SimpleNamespace(write=lambda *_: sys.exit(0))})
    with pytest.raises(UsageError, match="report format 'leaving': SystemExit: 0"):
        gate.write(gate_run, tmp_path)


def test_json_gives_the_run_back(gate_run: GateRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "write", lambda *_: [])
    gate.write(gate_run, tmp_path)
    assert store.parse(GateRun, (tmp_path / "gate.json").read_bytes()) == gate_run


def test_a_run_without_pairs_has_no_figure(gate_run: GateRun, tmp_path: Path) -> None:
    refused = replace(gate_run, cases=(), findings=(), refused=("the machines differ",))
    assert {path.name for path in gate.write(refused, tmp_path)} == {"gate.json", "gate.md", "junit.xml"}
    page = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert "**Can't be compared**: the machines differ" in page
    assert "pairs.png" not in page


@pytest.mark.parametrize("name", ["gate.md", "gate.json", "junit.xml"])
def test_no_file_is_written_through_a_link_or_into_a_pipe(
    gate_run: GateRun, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "gate.md":  # a picture each time would take long
        monkeypatch.setattr(plot, "write", lambda *_: [])
    folder, outside = tmp_path / "gate", tmp_path / "precious"
    folder.mkdir()
    outside.write_text("mine")
    (folder / name).symlink_to(outside)
    with pytest.raises(UsageError, match=f"{name} is a link to .*precious, and nothing is written through links"):
        gate.write(gate_run, folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    (folder / "pairs.png").symlink_to(outside)
    gate.write(gate_run, folder)
    assert (folder / name).is_file()
    assert outside.read_text() == "mine"


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


@pytest.mark.slow  # test_layers.py has what a command loads
def test_the_terminal_and_annotations_load_neither_matplotlib_nor_pandas() -> None:
    code = (
        "import sys; from harness.report.gate import github, terminal; "
        "print(sorted({'matplotlib', 'pandas', 'torch'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
