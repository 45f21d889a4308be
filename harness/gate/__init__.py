"""The gate: compares two codes, or two stored runs, and says what became slower.

A rule is a file in `rules/`, found by its name, with `judge(evidence) -> Iterator[Finding]`. A rule that judges what
other rules found has `review(evidence, findings) -> Iterator[Finding]` too.
"""

from __future__ import annotations

from harness.gate._calibrate import CaseNoise, calibrate, summary
from harness.gate._evidence import Evidence
from harness.gate._noise import LEAST_BLOCKS
from harness.gate._observer import GateObserver
from harness.gate._paired import Request, paired
from harness.gate._rules import acceptable, all_rules, check_accept, findings
from harness.gate._stored import stored

__all__ = [
    "LEAST_BLOCKS",
    "CaseNoise",
    "Evidence",
    "GateObserver",
    "Request",
    "acceptable",
    "all_rules",
    "calibrate",
    "check_accept",
    "findings",
    "paired",
    "stored",
    "summary",
]
