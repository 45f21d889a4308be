"""The gate: two codes, or two stored runs, and what became slower between them.

A rule is a file in `rules/`, found by its name, with `judge(evidence) -> Iterator[Finding]`.
"""

from __future__ import annotations

from harness.gate._calibrate import CaseNoise, calibrate, summary
from harness.gate._evidence import Evidence
from harness.gate._observer import Observer
from harness.gate._paired import Request, paired
from harness.gate._rules import findings, rules
from harness.gate._stored import stored

__all__ = [
    "CaseNoise",
    "Evidence",
    "Observer",
    "Request",
    "calibrate",
    "findings",
    "paired",
    "rules",
    "stored",
    "summary",
]
