"""Annotations of a GitHub workflow: lines on standard output that GitHub shows beside the change."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from harness.gate.records import Finding, GateRun
from harness.report.gate.content import WAIVERS, findings, limited, told

Level = Literal["error", "warning"]

MOST = 10
"""Annotations of a level in a step: GitHub drops the rest."""
_LONGEST = 4000  # characters of a message; past some limit GitHub cuts or drops it


class Annotation(NamedTuple):
    """What an annotation says: the rule, the message, and the file and line that it is shown beside."""

    rule: str
    message: str
    file: str = ""
    line: int = 0


def lines(run: GateRun, label: str = "", workspace: str = "") -> list[str]:
    """At most MOST errors (failures, a machine that can't tell) and MOST warnings (undecided, accepted).

    Notes aren't annotated, but those about waivers, beside the line of the waiver.

    Under --advisory there are warnings only. label: of the verdict, where there are several. workspace: the folder that
    GitHub takes paths from, GITHUB_WORKSPACE; the top of the repository unless told.
    """
    messages: dict[Level, list[Annotation]] = {"error": [], "warning": []}
    for difference in run.refused:
        messages["error"].append(Annotation("comparison", f"the runs can't be compared: {difference}"))
    for finding in findings(run):
        if finding.severity != "note":
            level: Level = "warning" if finding.severity in ("undecided", "accepted") else "error"
            messages[level].append(Annotation(finding.rule, told(finding), changed_file(run, finding)))
        elif finding.rule == WAIVERS:
            file, line, _ = f"{finding.message}::".split(":", 2)
            number = int(line) if line.isdigit() else 0
            messages["warning"].append(Annotation(finding.rule, told(finding), file if number else "", number))
    if run.advisory:
        messages = {"warning": messages["error"] + messages["warning"]}
    for found in messages.values():
        found[:] = [each._replace(file=below(workspace, run.now.repository, each.file)) for each in found]
        if label:
            found[:] = [each._replace(message=f"{label}: {each.message}") for each in found]
    return [line for level, found in messages.items() for line in _of(level, found)]


def below(workspace: str, folder: str, file: str) -> str:
    """A file's path from the workspace on, as it is if nobody knows that. folder: where the path begins."""
    if not file or not workspace:
        return file
    full, top = Path(folder).resolve() / file, Path(workspace).resolve()
    return str(full.relative_to(top)) if full.is_relative_to(top) else file


def changed_file(run: GateRun, finding: Finding) -> str:
    """The file that a finding is most likely about, from the repository's top on; "" if no file is known to differ.

    That is a file that the rule itself names; else a changed file that a side used: the one with the name of the op,
    or the first.
    """
    if run.used is None:
        return ""
    of_rule = {
        "software": run.used.software,
        "code": [f for f in (*run.used.shared, *run.used.filtered) if f[:1] != "/"],
    }
    if own := of_rule.get(finding.rule):
        return own[0]
    op = finding.case.op if finding.case else ""
    return next((f for f in run.used.changed if PurePosixPath(f).stem == op), next(iter(run.used.changed), ""))


def _of(level: Level, found: list[Annotation]) -> list[str]:
    made = [command(level, *said) for said in found]
    return limited(made, MOST, command(level, "more", "and {} more: see the step's summary, or gate.md"))


def command(level: Level, rule: str, message: str, file: str = "", line: int = 0) -> str:
    """A workflow command. Whatever `message` holds, it stays one command on one line.

    file: where GitHub shows it, from the top of the repository on; line: in that file; nowhere unless told.
    """
    short = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
    where = (f"file={_property(file)}," if file else "") + (f"line={line}," if file and line else "")
    return f"::{level} {where}title={_property(f'gate, {rule}')}::{_data(short)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
