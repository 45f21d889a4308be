"""The rule about results that are wrong for the base, and about checks that became laxer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.gate import Evidence
from harness.gate.records import CaseEvidence, Judged, UsedCode
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


def test_cases_of_several_devices_which_the_base_does_not_judge_are_told(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence]
) -> None:
    """A case that only one side has isn't compared, and stored runs have no base that could judge."""
    pair, four, new, alone = (replace(case(op=op), world=world) for op, world in zip("abcd", (2, 4, 2, 1), strict=True))
    cases = (evidence(of=alone), evidence(of=new, base=()), evidence(of=pair))
    [note] = check.judge(Evidence("main", (), cases, used=UsedCode()))
    told = "of several devices, so checked by the working tree's reference, not by main's"
    assert (note.severity, note.message) == ("note", f"{pair.id}: {told}")
    [note] = check.judge(Evidence("main", (), (*cases, evidence(of=four)), used=UsedCode()))
    assert note.message == f"{pair.id} and 1 more: {told}"
    assert not list(check.judge(Evidence("main", (), cases)))
    assert not list(check.judge(Evidence("main", (), cases[:2], used=UsedCode())))
