"""The rule about the code that measures."""

from __future__ import annotations

from harness.gate import Evidence
from harness.gate.rules import measuring


def test_measuring_code_that_changed_is_undecided() -> None:
    [finding] = measuring.judge(Evidence("main", (), (), measuring="measure.py changed"))
    assert (finding.severity, finding.message) == ("undecided", "measure.py changed")
    assert "--harness" in finding.advice
    assert not list(measuring.judge(Evidence("main", (), ())))
