"""Explain a case: what bounds it, and how much each remedy could save at most.

A rule is a file in `rules/`, found by its name. It offers SUMMARY, EFFECT_OF and `judge`, as `_rules` describes them.
It reads what is known of a case (`Known`), and gives reasons (`Reason`), each with the figures that it follows from.
"""

from __future__ import annotations

from harness.explain.knowledge import TRACES, Newest, command, known, known_of, newest
from harness.explain.records import Known, Reason, Seen, Sibling
from harness.explain.rulebook import CauseRule, all_rules, explain, verdict

__all__ = [
    "TRACES",
    "CauseRule",
    "Known",
    "Newest",
    "Reason",
    "Seen",
    "Sibling",
    "all_rules",
    "command",
    "explain",
    "known",
    "known_of",
    "newest",
    "verdict",
]
