"""The rule about cases that aren't there, or not ok."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.errors import Problem
from harness.gate import Evidence
from harness.gate._cases import Broken
from harness.gate.records import CaseEvidence
from harness.gate.rules import missing
from harness.model import Measurement

OK, WRONG, UNSUPPORTED = ({"status": status} for status in ("ok", "wrong", "unsupported"))


@pytest.mark.parametrize(
    ("base", "now", "severity", "words"),
    [
        ([OK] * 2, [], "failure", "gone: main has it"),
        ([UNSUPPORTED] * 2, [], "note", "gone; in main it ended as unsupported"),
        ([OK, WRONG], [], "failure", "gone: main has it"),
        ([], [OK] * 2, "note", "new: main doesn't have it"),
        ([], [UNSUPPORTED], "note", "new"),
        ([], [WRONG], "failure", "new: main doesn't have it; ended as wrong"),
        ([OK] * 2, [WRONG] * 2, "failure", "ended as wrong: off by 3; in main it was ok"),
        ([OK] * 2, [OK, WRONG], "failure", "ended as wrong in 1 of 2 processes"),
        ([WRONG] * 2, [WRONG] * 2, "note", "not measured: ended as wrong: off by 3, as in main"),
        ([WRONG] * 2, [OK] * 2, "note", "ok now; in main it ended as wrong"),
        (
            [OK, WRONG],
            [WRONG] * 2,
            "failure",
            "ended as wrong: off by 3; in main it ended as wrong in 1 of 2 processes",
        ),
        ([OK, WRONG], [WRONG, OK], "undecided", "too few processes to decide (pairs: 0); in main it ended"),
    ],
)
def test_what_is_gone_or_wrong_fails_unless_it_was_so_before(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: list[dict[str, Any]],
    now: list[dict[str, Any]],
    severity: str,
    words: str,
) -> None:
    def of(side: list[dict[str, Any]]) -> tuple[Measurement, ...]:
        return tuple(measured(**fields, error=None if fields == OK else "off by 3\nand more") for fields in side)

    [finding] = missing.judge(Evidence("main", (), (evidence(None, base=of(base), now=of(now), pairs=()),)))
    assert finding.severity == severity
    assert words in finding.message
    assert "and more" not in finding.message


def test_too_few_pairs_are_no_decision(evidence: Callable[..., CaseEvidence]) -> None:
    [finding] = missing.judge(Evidence("main", (), (evidence(None),)))
    assert finding.severity == "undecided"
    assert "--repeat 10 or more" in finding.advice


def test_what_fails_now_and_then_with_both_codes_is_a_note_where_the_rest_decides(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    flaky = (measured(), measured(**WRONG), measured(), measured())
    [finding] = missing.judge(Evidence("main", (), (evidence("ok", base=flaky, now=flaky),)))
    assert finding.severity == "note"
    assert finding.message == "ended as wrong in 1 of 4 processes; in main it ended as wrong in 1 of 4 processes"


def test_nothing_is_said_of_what_was_decided(evidence: Callable[..., CaseEvidence]) -> None:
    assert not list(missing.judge(Evidence("main", (), (evidence("regressed"),))))


def test_a_scenario_that_only_the_base_can_load_fails() -> None:
    broken = Broken("ci.yaml", (Problem("ci.yaml:3: op", "no op is named 'prelu'"),))
    [finding] = missing.judge(Evidence("main", (), (), broken=(broken,)))
    assert (finding.severity, finding.case) == ("failure", None)
    assert "ci.yaml:3: op: no op is named 'prelu'" in finding.message
    assert finding.advice.startswith("main can load it")
