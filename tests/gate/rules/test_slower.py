"""The rule about losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Decision, Margin
from harness.gate.rules import slower


def test_a_loss_fails_and_the_sentence_has_numbers_and_base(evidence: Callable[..., CaseEvidence]) -> None:
    found = evidence("regressed", loss=0.05)
    [finding] = slower.judge(Evidence("main", (), (found,)))
    assert (finding.rule, finding.severity, finding.case) == ("slower", "failure", found.case)
    assert finding.message == "5.00% slower than main (4 pairs, -5.95% to -4.05%), more than the margin of 1.00%"
    assert finding.advice == "look at what changed in prelu; or allow it by a waiver in waivers.yaml or by --margin"


def test_a_large_loss_tells_the_time_too_since_two_thirds_of_the_speed_are_three_times_the_time(
    evidence: Callable[..., CaseEvidence],
) -> None:
    [finding] = slower.judge(Evidence("main", (), (evidence("regressed", loss=2 / 3),)))
    assert finding.message.startswith("66.67% slower than main, it takes 3.00 times as long (4 pairs")


def test_what_cannot_be_told_is_undecided_and_says_how_many_pairs_would_tell(
    evidence: Callable[..., CaseEvidence],
) -> None:
    decision = Decision("inconclusive", "confirm", -0.01, -0.02, 0.0, 20, p=0.4, pairs_to_tell=80)
    [finding] = slower.judge(Evidence("main", (), (evidence(decision=decision),)))
    assert finding.severity == "undecided"
    assert finding.message.endswith("the loss may be more than the margin of 1.00%, or less")
    assert finding.advice.startswith(
        "about 80 pairs would decide: give the same command with --resume FOLDER --pairs 80"
    )
    capped = evidence(decision=replace(decision, pairs_to_tell=640))
    [finding] = slower.judge(Evidence("main", (), (capped,)))
    assert finding.advice.startswith("640 or more pairs would decide")


def test_a_loss_that_noise_hides_from_any_number_of_pairs_says_so(evidence: Callable[..., CaseEvidence]) -> None:
    decision = Decision("inconclusive", "confirm", -0.02, -0.025, -0.015, 20, p=0.4)
    [finding] = slower.judge(Evidence("main", (), (evidence(decision=decision, margin=Margin(0.01, 0.015, 0.025)),)))
    assert finding.message.endswith("more than the margin of 2.00%, or less, and fails from 2.50% on")
    assert finding.advice.startswith("pairs can't tell such a loss from noise")


def test_a_loss_beyond_its_waiver_fails_as_any_other(evidence: Callable[..., CaseEvidence]) -> None:
    found = evidence("regressed", loss=0.05, margin=Margin(0.01, waived=0.03))
    [finding] = slower.judge(Evidence("main", (), (found,)))
    assert finding.severity == "failure"
    assert finding.message.endswith("more than the waived 3.00%")


def test_a_gain_is_a_note_and_ok_is_nothing(evidence: Callable[..., CaseEvidence]) -> None:
    [finding] = slower.judge(Evidence("main", (), (evidence("improved", loss=-0.1), evidence("ok"))))
    assert finding.severity == "note"
    assert finding.message.startswith("10.00% faster than main")


def test_a_control_is_left_to_the_environment(evidence: Callable[..., CaseEvidence]) -> None:
    assert not list(slower.judge(Evidence("main", (), (evidence("regressed", loss=0.1, control=True),))))
