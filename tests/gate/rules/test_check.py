"""The rule about results that are wrong for the base, and about checks that became laxer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Judged
from harness.gate.rules import check
from harness.model import Case, Measurement


def test_a_laxer_check_is_undecided() -> None:
    found = list(check.judge(Evidence("main", (), (), laxer=("mine has neither a reference nor a check now",))))
    assert [(f.rule, f.severity, f.message) for f in found] == [
        ("check", "undecided", "mine has neither a reference nor a check now (main)")
    ]
    assert not list(check.judge(Evidence("main", (), ())))


def test_what_the_base_finds_wrong_fails_and_what_it_cannot_judge_is_undecided(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    wrong, unknown, crashed = (case(op=op) for op in ("wrong", "unknown", "crashed"))
    judged = (Judged(wrong, wrong="y is off"), Judged(unknown, unable="no tensor"), Judged(crashed, wrong="y is off"))
    cases = (evidence(of=wrong), evidence(of=crashed, now=(measured(of=crashed, status="wrong"),)))
    failure, undecided = check.judge(Evidence("main", (), cases, judged=judged))
    assert (failure.severity, failure.case) == ("failure", wrong), "the rule 'wrong' tells of the other one"
    assert failure.message == "wrong by the reference, check and inputs of main: y is off"
    assert undecided.severity == "undecided"
    assert undecided.message.endswith(f"{unknown.id}: no tensor")
    more = (*judged, Judged(case(op="another"), unable="no list"))
    [*_, undecided] = check.judge(Evidence("main", (), cases, judged=more))
    assert undecided.message.endswith(f"{unknown.id} and 1 more: no tensor")


@pytest.mark.parametrize(("side", "told"), [("", True), ("base", False), ("now", False)])
def test_what_was_not_judged_is_undecided_where_it_has_times_of_both_sides(
    case: Callable[..., Case],
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    side: str,
    told: bool,
) -> None:
    """Else another rule tells why nothing was compared."""
    crashed = {side: (measured(status="crashed"),)} if side else {}
    judged = (Judged(case(), unable="it wasn't right when it was asked"),)
    assert bool([*check.judge(Evidence("main", (), (evidence(**crashed),), judged=judged))]) == told
