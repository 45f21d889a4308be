from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.gate.records import Finding, GateRun
from harness.report.gate.formats import junit


@pytest.fixture
def suite(tmp_path: Path) -> Callable[[GateRun], ET.Element]:
    def write(run: GateRun) -> ET.Element:
        [path] = junit.write(run, tmp_path)
        found = ET.parse(path).getroot().find("testsuite")
        assert found is not None
        return found

    return write


def test_one_of_everything(gate_run: GateRun, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    [path] = junit.write(gate_run, tmp_path)
    golden("gate-junit.xml", path.read_text(encoding="utf-8"))


def test_counts_are_those_of_the_tests(gate_run: GateRun, suite: Callable[[GateRun], ET.Element]) -> None:
    root = suite(gate_run)
    names = ("tests", "failures", "errors", "skipped")
    assert [root.get(name) for name in names] == ["8", "3", "0", "1"]
    assert [len(root.findall(f".//{tag}")) for tag in ("testcase", "failure", "error", "skipped")] == [8, 3, 0, 1]


def test_a_machine_that_can_not_tell_is_an_error(gate_run: GateRun, suite: Callable[[GateRun], ET.Element]) -> None:
    moved = Finding("environment", "environment", "the copies lost 4%, too")
    root = suite(replace(gate_run, findings=(moved,), refused=("the timers differ",)))
    assert [(test.get("name"), test[0].get("message")) for test in root.iter("testcase") if len(test)] == [
        ("environment", "the copies lost 4%, too"),
        ("comparison", "the timers differ"),
    ]
    assert root.get("errors") == "2"


def test_an_advisory_run_fails_nothing(gate_run: GateRun, suite: Callable[[GateRun], ET.Element]) -> None:
    root = suite(replace(gate_run, advisory=True))
    assert [root.get(name) for name in ("failures", "errors", "skipped")] == ["0", "0", "4"]


def test_what_xml_can_not_hold_is_replaced(gate_run: GateRun, suite: Callable[[GateRun], ET.Element]) -> None:
    said = Finding("missing", "failure", "\x1b[31m]]>\0 & \ud800 ok", case=gate_run.cases[0].case)
    [failure] = suite(replace(gate_run, findings=(said,))).iter("failure")
    assert failure.get("message") == "\ufffd[31m]]>\ufffd & \ufffd ok"
