"""The gate: compares two codes, or two stored runs, and says what became slower.

A rule is a file in `rules/`, found by its name, with `judge(evidence) -> Iterator[Finding]`. A rule that judges what
other rules found has `review(evidence, findings) -> Iterator[Finding]` too.
"""

from __future__ import annotations

from harness.gate.calibration import CaseNoise, calibrate, summary
from harness.gate.evidence import Evidence
from harness.gate.observer import GateObserver
from harness.gate.offsets import LEAST_BLOCKS
from harness.gate.rulebook import acceptable, all_rules, check_accept, findings
from harness.gate.two_codes import Request, paired
from harness.gate.two_runs import stored

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
