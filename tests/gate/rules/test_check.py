"""The rule about checks that became laxer."""

from __future__ import annotations

from harness.gate import Evidence
from harness.gate.rules import check


def test_a_laxer_check_is_undecided() -> None:
    found = list(check.judge(Evidence("main", (), (), laxer=("mine has neither a reference nor a check now",))))
    assert [(f.rule, f.severity, f.message) for f in found] == [
        ("check", "undecided", "mine has neither a reference nor a check now (main)")
    ]
    assert not list(check.judge(Evidence("main", (), ())))
