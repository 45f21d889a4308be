"""JUnit XML, which CI systems show as tests: one a case, and one for each rule that speaks of the whole run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

from harness.gate.records import Finding, GateRun, Severity
from harness.report.gate.content import WAIVERS, CaseRow, findings, revision, rows, table, told, waivers
from harness.report.text import as_text

_ELEMENTS: dict[Severity, str] = {
    "failure": "failure",
    "environment": "error",
    "undecided": "skipped",
    "accepted": "skipped",
}
_COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(run: GateRun, folder: Path) -> list[Path]:
    """Write junit.xml: failures, errors (a machine that can't give valid numbers), skipped (inconclusive, accepted).

    Under --advisory nothing fails: what would have is skipped.
    """
    path = folder / "junit.xml"
    root = ET.Element("testsuites")
    root.append(suite(run))
    ET.indent(root)
    path.write_bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
    return [path]


def suite(run: GateRun) -> ET.Element:
    """All tests of a gate run."""
    tests = [*_of_the_run(run), *(_test(run, row) for row in rows(run))]
    counts = Counter(child.tag for test in tests for child in test)
    made = ET.Element("testsuite", name="gate", tests=str(len(tests)))
    for tag, attribute in _COUNTS.items():
        made.set(attribute, str(counts[tag]))
    made.set("time", f"{run.seconds:.3f}")
    # UTC, and without saying so, which is all that the usual schema takes.
    made.set("timestamp", run.started.partition("+")[0])
    properties = ET.SubElement(made, "properties")
    facts = {"base": revision(run.base), "now": revision(run.now), "machine": run.machine.name, "seed": str(run.seed)}
    more = {"repository": run.now.repository, "accepted": ", ".join(run.accept), "waivers": waivers(run)}
    facts |= {name: value for name, value in more.items() if value}
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=name, value=clean(value))
    made.extend(tests)
    return made


def _test(run: GateRun, row: CaseRow) -> ET.Element:
    evidence = row.evidence
    test = ET.Element("testcase", classname=clean(f"gate.{evidence.scenario}"), name=clean(row.case))
    spent = sum(seconds for m in (*evidence.base, *evidence.now) for _, seconds in m.phases)
    test.set("time", f"{spent:.3f}")
    columns = as_text(table([row])).columns[1:]
    numbers = ", ".join(f"{column.head} {column.cells[0]}" for column in columns if column.cells[0])
    _add(run, test, row.findings, numbers)
    return test


def _of_the_run(run: GateRun) -> list[ET.Element]:
    """A test for each rule that has something to say of the whole run, and one for runs that can't be compared."""
    made = []
    about: dict[str, list[Finding]] = {}
    for finding in findings(run):
        if finding.case is None:
            about.setdefault(finding.rule, []).append(finding)
    for difference in run.refused:
        about.setdefault("comparison", []).append(Finding("comparison", "environment", difference))
    for rule, found in about.items():
        test = ET.Element("testcase", classname="gate", name=clean(rule), time="0.000")
        _add(run, test, tuple(found), "")
        made.append(test)
    return made


def _add(run: GateRun, test: ET.Element, found: tuple[Finding, ...], numbers: str) -> None:
    """The gravest finding decides; all of them are told in the text."""
    tag = _ELEMENTS.get(found[0].severity) if found else None
    if tag is None:
        if found and found[0].rule == WAIVERS:
            ET.SubElement(test, "system-out").text = clean("\n".join(map(told, found)))
        return
    element = ET.SubElement(test, "skipped" if run.advisory else tag, message=clean(_headed(found[0])))
    if element.tag != "skipped":
        element.set("type", clean(found[0].rule))
    element.text = clean("\n".join(filter(None, [*map(told, found), numbers])))


def _headed(finding: Finding) -> str:
    return f"accepted: {finding.message}" if finding.severity == "accepted" else finding.message


def clean(text: str) -> str:
    """Text without what XML can't hold, such as the colours of a compiler's log."""
    return _NOT_XML.sub("\ufffd", text)
