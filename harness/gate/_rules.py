"""The rules, found by the names of their files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast

from harness.discover import discover
from harness.gate._evidence import Evidence
from harness.gate.records import GRAVITY, Finding


class Rule(Protocol):
    """What a rule's file offers."""

    def judge(self, evidence: Evidence) -> Iterator[Finding]:
        """What it has to say of the evidence."""


def rules() -> dict[str, Rule]:
    """Every rule by name."""
    return {name: cast(Rule, module) for name, module in discover("harness.gate.rules", ["judge"]).items()}


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """What all rules have to say, the gravest first."""
    found = [finding for rule in rules().values() for finding in rule.judge(evidence)]
    return tuple(sorted(found, key=lambda finding: GRAVITY.index(finding.severity)))
