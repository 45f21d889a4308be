"""The gate's verdict on a terminal: the table, worst first, then the findings, then one line that says it all."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.gate.records import GateRun, Severity
from harness.report._columns import Column
from harness.report._console import GAP, draw, headline, tell
from harness.report.gate._content import code, columns, findings, limited, outcome, plural, rows, told, verdict

if TYPE_CHECKING:
    from rich.console import Console

_STYLES: dict[Severity, str] = {"environment": "magenta", "failure": "red", "undecided": "yellow", "note": ""}
_MOST_NOTES = 10
_NARROWEST = 18


def render(run: GateRun, console: Console) -> None:
    """Draw a gate run. The last line has the verdict, the exit code and what it means."""
    headline(console, f"{code(run.base)} against {code(run.now)}, on {run.machine.name}")
    if table := rows(run):
        draw(_narrowed(columns(table), console.width), console, [_style(row.severity, row.verdict) for row in table])
    console.print()
    for difference in run.refused:
        tell(console, f"can't be compared: {difference}", _STYLES["environment"])
    told_ = findings(run)
    for finding in (f for f in told_ if f.severity != "note"):
        tell(console, f"{finding.severity} ({finding.rule}) {told(finding)}", _STYLES[finding.severity])
    notes = [f"note ({finding.rule}) {told(finding)}" for finding in told_ if finding.severity == "note"]
    for note in limited(notes, _MOST_NOTES, "note: and {} more, see gate.md"):
        tell(console, note)
    word, meaning = verdict(run)
    pairs = max((len(evidence.pairs) for evidence in run.cases), default=0)
    tell(console, f"{outcome(run)}; {plural(pairs, 'pair')} at most, {run.seconds:.0f} s")
    tell(console, f"gate {word}: exit {run.exit:d}, {meaning}", "bold")


def _style(severity: Severity, verdict_: str) -> str:
    return _STYLES[severity] or ("green" if verdict_ == "improved" else "")


def _narrowed(made: list[Column], width: int) -> list[Column]:
    """The columns with ids that are broken where a part ends, if they are too wide for the console."""
    first, *others = made
    taken = sum(max(map(len, (column.head, *column.cells))) + GAP for column in others)
    room = max(_NARROWEST, width - taken)
    return [replace(first, cells=tuple(_broken(cell, room) for cell in first.cells)), *others]


def _broken(id_: str, width: int) -> str:
    """An id over several lines of at most `width`, each ending with '/' or '-'; longer parts are left whole."""
    lines = [""]
    for part in re.findall(r"[^/-]*[/-]|[^/-]+", id_):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
