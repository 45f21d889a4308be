"""What a gate leaves that ended before it could judge."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.errors import Exit, InputError, MachineError, Problem, UsageError
from harness.report.gate.stopped import Stopped, annotation, publish, write

BAD = Stopped.by(UsageError("mine.py:7: SyntaxError: invalid syntax", "correct that line"), ("harness", "gate"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a", "b"), Exit.USAGE),
        (InputError([Problem("a.yaml:3", "b", "c")]), Exit.USAGE),
        (SystemExit(0), Exit.USAGE),
        (MachineError("a", "b"), Exit.ENVIRONMENT),
        (OSError(28, "No space left"), Exit.ENVIRONMENT),
        (KeyError("a"), Exit.BUG),
    ],
)
def test_every_way_to_stop_leaves_its_exit_code_and_message(error: BaseException, code: Exit, tmp_path: Path) -> None:
    (tmp_path / "pairs.png").write_text("of an earlier gate")
    stopped = Stopped.by(error, ("harness", "gate"))
    assert [path.name for path in write(stopped, tmp_path)] == ["gate.json", "gate.md", "junit.xml"]
    assert not (tmp_path / "pairs.png").exists()
    record = json.loads((tmp_path / "gate.json").read_text())["stopped"]
    assert (record["exit"], record["message"]) == (code, stopped.message)
    assert f"Exit code {code:d}" in (tmp_path / "gate.md").read_text()
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    assert suite.attrib["errors"] == "1"
    assert suite[0][0].text == stopped.text


def test_an_annotation_stands_beside_the_line_that_is_named() -> None:
    here = Path("/repo")
    assert annotation(BAD, here).startswith("::error file=mine.py,line=7,title=gate%2C wrong usage::mine.py:7: Syntax")
    inside = Stopped(2, "/repo/bench/mine.py:7: SyntaxError", "")
    assert annotation(inside, here).startswith("::error file=bench/mine.py,line=7,")
    missing = Stopped(2, "--ops bench/ops.py: no such file", "")
    assert annotation(missing, here).startswith("::error file=bench/ops.py,title=")
    raised = Stopped(2, "/repo/bench/mine.py: NameError: name 'a' (mine.py:7 in <module>: a)", "")
    assert annotation(raised, here).startswith("::error file=bench/mine.py,line=7,")
    for message in ("/elsewhere/mine.py:7: SyntaxError", "git isn't installed", f"{Path.cwd()}: git knows no 'x'"):
        assert annotation(Stopped(2, message, ""), here).startswith("::error title=")
    # The command runs in a folder of the repository, which lies in a folder of the workspace.
    below = here / "bench"
    assert annotation(BAD, below, "/repo").startswith("::error file=bench/mine.py,line=7,")
    assert annotation(inside, below, "/repo").startswith("::error file=bench/mine.py,line=7,")
    assert annotation(inside, below, "/").startswith("::error file=repo/bench/mine.py,line=7,")
    assert annotation(inside, below, "/other").startswith("::error title=")


def test_github_gets_a_summary_and_an_annotation_where_it_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    publish(BAD, {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}, tmp_path)
    assert capsys.readouterr().out.count("::error ") == 1
    assert summary.read_text().startswith("# Gate stopped: wrong usage\n")
    publish(BAD, {}, tmp_path)
    assert capsys.readouterr().out == ""


def test_nothing_in_a_message_is_markdown(tmp_path: Path) -> None:
    stopped = Stopped(2, "```\n# not a heading", "")
    write(stopped, tmp_path)
    assert "````text\n```\n# not a heading\n````\n" in (tmp_path / "gate.md").read_text()
