"""The rules, found by the names of their files."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from harness.gate._evidence import Evidence
from harness.verdict import GRAVITY, Finding


class Rule(Protocol):
    """What a rule's file offers."""

    def judge(self, evidence: Evidence) -> Iterator[Finding]:
        """What it has to say of the evidence."""


def rules() -> dict[str, Rule]:
    """Every rule by name."""
    names = sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))
    return {name: cast(Rule, importlib.import_module(f"harness.gate.{name}")) for name in names}


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """What all rules have to say, the gravest first."""
    found = [finding for rule in rules().values() for finding in rule.judge(evidence)]
    return tuple(sorted(found, key=lambda finding: GRAVITY.index(finding.severity)))
