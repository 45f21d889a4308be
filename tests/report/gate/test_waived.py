"""Waivers in every output of a gate run: the table, the last line, annotations, JUnit, the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from harness.gate.records import CaseEvidence, Finding, GateRun, Margin, Waiver
from harness.model import Case
from harness.report.gate import build, content, github
from harness.report.gate.formats import junit, markdown

WAIVERS = (
    Waiver(("layer_norm/*",), 0.03, "the new mask", "alice", "2027-03-31", "waivers.yaml:2"),
    Waiver(("gone/*",), 0.5, "r", "bob", "2025-12-31", "waivers.yaml:9"),
)


@pytest.fixture
def run(case: Callable[..., Case], evidence: Callable[..., CaseEvidence], make_gate: Callable[..., GateRun]) -> GateRun:
    slow = case("layer_norm")
    found = evidence(slow, "ok", -0.02, confirm=10, margin=Margin(0.01, 0.001, waived=0.03))
    told = (
        Finding("waivers", "accepted", "-2.00% against main, waived: the new mask (alice)", case=slow),
        Finding("waivers", "note", "waivers.yaml:9: the waiver of gone/* (bob) expired on 2025-12-31", "remove it"),
    )
    return make_gate([found], told, waivers=WAIVERS)


def test_a_case_that_passes_by_its_waiver_is_called_so_and_the_last_line_counts_it(run: GateRun) -> None:
    [row] = content.rows(run)
    assert row.verdict == "waived"
    assert content.ending(run) == ("passed", "no case of ours lost more than its margin; waived: 1 case")
    assert run.exit == 0


def test_a_waiver_that_is_new_is_called_so_in_the_last_line_on_the_page_and_in_junit(
    run: GateRun, tmp_path: Path
) -> None:
    new = replace(run, waivers=(replace(WAIVERS[0], new=True), replace(WAIVERS[1], new=False)))
    assert content.ending(new)[1].endswith("; waived: 1 case, 1 by a waiver that is new since origin/main")
    told = "waivers.yaml:2 until 2027-03-31 (new since origin/main), waivers.yaml:9 until 2025-12-31"
    assert told in markdown.page(new)
    [path] = junit.write(new, tmp_path)
    assert f'<property name="waivers" value="{told}" />' in path.read_text()
    unused = replace(new, waivers=(WAIVERS[0], replace(WAIVERS[1], new=True)))
    assert content.ending(unused)[1].endswith("; waived: 1 case")


def test_the_terminal_leaves_out_other_notes_before_those_about_waivers(run: GateRun) -> None:
    many = tuple(Finding("code", "note", f"n{number}") for number in range(20))
    screen = str(build.screen(replace(run, findings=(*many, *run.findings))))
    assert "expired on 2025-12-31" in screen
    assert "n19" not in screen


def test_annotations_are_beside_the_line_of_the_waiver(run: GateRun) -> None:
    accepted, expired = github.lines(run)
    assert accepted.startswith("::warning title=gate%2C waivers::accepted: layer_norm/")
    assert expired.startswith("::warning file=waivers.yaml,line=9,title=gate%2C waivers::waivers.yaml:9: the waiver of")


def test_junit_and_the_page_tell_what_was_waived_and_what_has_expired(run: GateRun, tmp_path: Path) -> None:
    [path] = junit.write(run, tmp_path)
    suite = ET.parse(path).getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")
    texts = {element.tag: element.text or "" for test in suite.iter("testcase") for element in test}
    assert "waived: the new mask (alice)" in texts["skipped"]
    assert "expired on 2025-12-31; remove it" in texts["system-out"]
    properties = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert properties["waivers"] == "waivers.yaml:2 until 2027-03-31, waivers.yaml:9 until 2025-12-31"
    page = markdown.page(run)
    for text in ("the new mask (alice)", "expired on 2025-12-31", "waivers.yaml:2 until 2027-03-31", "waived: 1 case"):
        assert text in page


def test_what_a_run_goes_on_from_is_told(run: GateRun, make_gate: Callable[..., GateRun]) -> None:
    assert "goes on from" not in markdown.page(run)
    assert "the pairs of 2026-01-01T09:00" in markdown.page(make_gate(run.cases, continues="2026-01-01T09:00"))
    assert build.is_told(run.findings[1])


def test_the_sentence_about_errors_names_its_condition(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence], make_gate: Callable[..., GateRun]
) -> None:
    known, unknown = Margin(0.01, 0.002, chance=0.0001), Margin(0.01, None, 0.0135, chance=0.0003)

    def told(*margins: Margin) -> str:
        cases = [evidence(case("op", shape=(("N", n),)), margin=margin) for n, margin in enumerate(margins)]
        control = evidence(case("copy", "memcpy"), control=True, margin=Margin(0.01, None, chance=0.5))
        return content.method(make_gate([*cases, control]))

    assert "normal, as they were calibrated on this machine; by offsets alone in 0.02% of runs" in told(known, known)
    assert "normal, with a standard deviation of 0.40%, which is assumed; by offsets alone in 0.03%" in told(unknown)
    assert "or with a standard deviation of 0.40%, which is assumed for 1 case;" in told(known, unknown)
    assert "of runs of these 2 cases" in told(known, unknown)
    assert "Identical code" not in content.method(make_gate([evidence(case("new"), None)]))
