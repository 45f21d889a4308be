"""The rules, found by the names of their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from harness.discover import discover
from harness.errors import UsageError, nearest, without_exit
from harness.gate.evidence import Evidence
from harness.gate.records import GRAVITY, Finding


class Rule(Protocol):
    """What the file of a rule offers. It may also offer what `Reviewer` has.

    If a user may accept its failures and undecided findings, it defines ACCEPT, which says what is accepted then.
    """

    def judge(self, evidence: Evidence) -> Iterator[Finding]:
        """The findings of this rule."""


class Reviewer(Protocol):
    """What the file of a rule has that judges the findings of all rules."""

    def review(self, evidence: Evidence, findings: Sequence[Finding]) -> Iterator[Finding]:
        """More findings, given the findings that every rule's `judge` made."""


def all_rules() -> dict[str, Rule]:
    """Every rule by name. Raises UsageError for a file in rules/ without `judge`."""
    return {name: cast(Rule, module) for name, module in discover("harness.gate.rules", ["judge"]).items()}


def acceptable() -> dict[str, str]:
    """The rules whose findings a user may accept, each with what that means."""
    return {name: text for name, rule in all_rules().items() if (text := getattr(rule, "ACCEPT", ""))}


def check_accept(accept: Sequence[str]) -> None:
    """Raise UsageError for a name that isn't a rule whose findings can be accepted."""
    known = acceptable()
    for name in accept:
        if name not in known and name in all_rules():
            how = "a loss passes by a waiver in waivers.yaml or by a larger --margin, a wrong result by nothing"
            raise UsageError(f"--accept {name}: what this rule finds can't be accepted", f"{how}; {nearest('', known)}")
        if name not in known:
            raise UsageError(f"--accept {name}: there is no finding of this name to accept", nearest(name, known))


def findings(evidence: Evidence, accept: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings of all rules, the gravest first. Every rule judges once; then some review what was found.

    accept: rules whose failures and undecided findings become 'accepted', which no output leaves out.
    """
    every = all_rules()
    told = [finding for name, rule in every.items() for finding in _told(name, partial(rule.judge, evidence))]
    judged = [_accepted(finding) if finding.rule in accept else finding for finding in told]
    reviewers = {name: cast(Reviewer, rule) for name, rule in every.items() if hasattr(rule, "review")}
    reviewed = [f for name, rule in reviewers.items() for f in _told(name, partial(rule.review, evidence, judged))]
    return tuple(sorted([*judged, *reviewed], key=lambda finding: GRAVITY.index(finding.severity)))


def _accepted(finding: Finding) -> Finding:
    return replace(finding, severity="accepted") if finding.severity in ("failure", "undecided") else finding


def _told(name: str, ask: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a rule says, all of it. Raises UsageError for a rule that calls sys.exit, which would end the gate."""
    with without_exit(f"rule '{name}'"):
        return list(ask())
