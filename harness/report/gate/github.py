"""Annotations of a GitHub workflow: lines on standard output that GitHub shows beside the change."""

from __future__ import annotations

from typing import Literal

from harness.gate.records import GateRun
from harness.report.gate.content import findings, limited, told

Level = Literal["error", "warning"]

MOST = 10
"""Annotations of a level in a step: GitHub drops the rest."""
_LONGEST = 4000  # characters of a message; past some limit GitHub cuts or drops it


def lines(run: GateRun) -> list[str]:
    """At most MOST errors (failures, a machine that can't tell) and MOST warnings (undecided, accepted).

    Notes aren't annotated.

    Under --advisory there are warnings only.
    """
    messages: dict[Level, list[tuple[str, str]]] = {"error": [], "warning": []}
    for difference in run.refused:
        messages["error"].append(("comparison", f"the runs can't be compared: {difference}"))
    for finding in findings(run):
        if finding.severity != "note":
            level: Level = "warning" if finding.severity in ("undecided", "accepted") else "error"
            messages[level].append((finding.rule, told(finding)))
    if run.advisory:
        messages = {"warning": messages["error"] + messages["warning"]}
    return [line for level, found in messages.items() for line in _of(level, found)]


def _of(level: Level, found: list[tuple[str, str]]) -> list[str]:
    made = [command(level, rule, message) for rule, message in found]
    return limited(made, MOST, command(level, "more", "and {} more: see the step's summary, or gate.md"))


def command(level: Level, rule: str, message: str) -> str:
    """A workflow command. Whatever `message` holds, it stays one command on one line."""
    short = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
    return f"::{level} title={_property(f'gate, {rule}')}::{_data(short)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
