"""The rule about losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Decision
from harness.gate.rules import slower


def test_a_loss_fails_and_the_sentence_has_numbers_and_base(evidence: Callable[..., CaseEvidence]) -> None:
    found = evidence("regressed", loss=0.05)
    [finding] = slower.judge(Evidence("main", (), (found,)))
    assert (finding.rule, finding.severity, finding.case) == ("slower", "failure", found.case)
    assert finding.message == "5.00% slower than main (4 pairs, -5.95% to -4.05%), more than the margin of 1.00%"
    assert "prelu" in finding.advice


def test_what_cannot_be_told_is_undecided_and_says_how_many_pairs_would_tell(
    evidence: Callable[..., CaseEvidence],
) -> None:
    decision = Decision("inconclusive", "confirm", -0.01, -0.02, 0.0, 20, p=0.4, pairs_to_tell=70)
    [finding] = slower.judge(Evidence("main", (), (evidence(decision=decision),)))
    assert finding.severity == "undecided"
    assert finding.advice.startswith("about 70 pairs would decide")
    capped = evidence(decision=replace(decision, pairs_to_tell=200))
    [finding] = slower.judge(Evidence("main", (), (capped,)))
    assert finding.advice.startswith("200 or more pairs would decide")


def test_a_gain_is_a_note_and_ok_is_nothing(evidence: Callable[..., CaseEvidence]) -> None:
    [finding] = slower.judge(Evidence("main", (), (evidence("improved", loss=-0.1), evidence("ok"))))
    assert finding.severity == "note"
    assert finding.message.startswith("10.00% faster than main")


def test_a_control_is_left_to_the_environment(evidence: Callable[..., CaseEvidence]) -> None:
    assert not list(slower.judge(Evidence("main", (), (evidence("regressed", loss=0.1, control=True),))))
