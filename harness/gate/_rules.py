"""The rules, found by the names of their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

from harness.discover import discover
from harness.gate._evidence import Evidence
from harness.gate.records import GRAVITY, Finding


class Rule(Protocol):
    """What the file of a rule offers. It may also offer what `Reviewer` has."""

    def judge(self, evidence: Evidence) -> Iterator[Finding]:
        """The findings of this rule."""


class Reviewer(Protocol):
    """What the file of a rule has that judges the findings of all rules."""

    def review(self, evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
        """More findings, given those that every rule's `judge` made."""


def all_rules() -> dict[str, Rule]:
    """Every rule by name. Raises UsageError for a file in rules/ without `judge`."""
    return {name: cast(Rule, module) for name, module in discover("harness.gate.rules", ["judge"]).items()}


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """The findings of all rules, the gravest first. Every rule judges once; then some review what was found."""
    every = all_rules().values()
    judged = [finding for rule in every for finding in rule.judge(evidence)]
    reviewers = [cast(Reviewer, rule) for rule in every if hasattr(rule, "review")]
    reviewed = [finding for rule in reviewers for finding in rule.review(evidence, judged)]
    return tuple(sorted([*judged, *reviewed], key=lambda finding: GRAVITY.index(finding.severity)))
