"""The rules about cases that aren't there, not ok, or not compared."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from harness import clocks
from harness.clocks import Clocks
from harness.errors import Problem
from harness.gate import Evidence, ended
from harness.gate.case_lists import Broken
from harness.gate.records import CaseEvidence, Finding, Pair
from harness.gate.rules import missing, uncompared, wrong
from harness.measure import Sampler
from harness.model import Case, Measurement, Scenario
from harness.recheck import Recheck
from tests.one_test import one_test

OK, WRONG, UNSUPPORTED, TIMEOUT, MEMORY = (
    {"status": status} for status in ("ok", "wrong", "unsupported", "timeout", "out_of_memory")
)
PACE = {"status": "wrong", "error": "calls take 2 us where they are checked, 1 us in the samples"}
MESSAGE = "no case of our code was compared"


def judged(evidence: Evidence) -> list[Finding]:
    """What the three rules say of the cases, in one list."""
    every = [finding for rule in (missing, wrong, uncompared) for finding in rule.judge(evidence)]
    return [finding for finding in every if finding.case]


@pytest.mark.parametrize(
    ("base", "now", "rule", "severity", "words"),
    [
        ([OK] * 2, [], missing, "failure", "gone: main has it"),
        ([UNSUPPORTED] * 2, [], missing, "note", "gone; in main it ended as unsupported"),
        ([OK, WRONG], [], missing, "failure", "gone: main has it"),
        ([WRONG] * 2, [], missing, "failure", "gone: main has it, where it ended as wrong: off by 3"),
        ([], [OK] * 2, uncompared, "note", "new: main doesn't have it"),
        ([], [UNSUPPORTED], uncompared, "note", "new: main doesn't have it; ended as unsupported"),
        ([], [WRONG], wrong, "failure", "new: main doesn't have it; ended as wrong"),
        ([OK] * 2, [WRONG] * 2, wrong, "failure", "ended as wrong: off by 3; in main it was ok"),
        ([OK] * 2, [UNSUPPORTED] * 2, wrong, "failure", "ended as unsupported: off by 3; in main it was ok"),
        ([OK] * 2, [OK, WRONG], wrong, "failure", "ended as wrong in 1 of 2 processes"),
        ([WRONG] * 2, [WRONG] * 2, uncompared, "undecided", "not compared: ended as wrong: off by 3; in main it ended"),
        ([TIMEOUT] * 3, [TIMEOUT] * 3, uncompared, "undecided", "not compared: ended as timeout"),
        ([UNSUPPORTED] * 3, [UNSUPPORTED] * 3, uncompared, "note", "not compared: ended as unsupported"),
        ([MEMORY] * 3, [MEMORY] * 3, uncompared, "undecided", "not compared: ended as out of memory"),
        ([MEMORY] * 3, [UNSUPPORTED] * 3, uncompared, "undecided", "not compared: ended as unsupported"),
        ([UNSUPPORTED] * 3, [WRONG] * 3, wrong, "failure", "ended as wrong: off by 3; in main it ended as unsupported"),
        ([WRONG] * 3, [OK] * 3, uncompared, "undecided", "not compared: ok now; in main it ended as wrong: off by 3"),
        ([MEMORY] * 3, [OK] * 3, uncompared, "undecided", "not compared: ok now"),
        ([UNSUPPORTED] * 3, [OK] * 3, uncompared, "note", "not compared: ok now; in main it ended as unsupported"),
        ([OK, WRONG], [WRONG] * 2, wrong, "failure", "ended as wrong: off by 3; in main it ended as wrong in 1 of 2"),
        ([OK, WRONG], [WRONG, OK], uncompared, "undecided", "too few processes to decide (pairs: 0); in main it ended"),
        ([OK, WRONG], [OK, OK], uncompared, "undecided", "too few processes to decide (pairs: 0); in main it ended"),
    ],
)
def test_what_is_gone_or_wrong_fails_and_what_was_not_compared_is_undecided(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: list[dict[str, Any]],
    now: list[dict[str, Any]],
    rule: Any,
    severity: str,
    words: str,
) -> None:
    def of(side: list[dict[str, Any]]) -> tuple[Measurement, ...]:
        return tuple(measured(**fields, error=None if fields == OK else "off by 3\nand more") for fields in side)

    [finding] = judged(Evidence("main", (), (evidence(None, base=of(base), now=of(now), pairs=()),)))
    assert (finding.rule, finding.severity) == (rule.__name__.rpartition(".")[2], severity)
    assert words in finding.message
    assert "and more" not in finding.message


def test_too_few_pairs_are_no_decision(evidence: Callable[..., CaseEvidence]) -> None:
    [finding] = judged(Evidence("main", (), (evidence(None),)))
    assert (finding.rule, finding.severity) == ("uncompared", "undecided")
    assert "--repeat 10 or more" in finding.advice


def test_what_fails_now_and_then_with_both_codes_is_a_note_where_the_rest_decides(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    flaky = (measured(), measured(**WRONG), measured(), measured())
    [finding] = judged(Evidence("main", (), (evidence("ok", base=flaky, now=flaky),)))
    assert (finding.rule, finding.severity) == ("wrong", "note")
    assert finding.message == "ended as wrong in 1 of 4 processes; in main it ended as wrong in 1 of 4 processes"


@pytest.mark.parametrize(
    ("base", "now", "severity"),
    [
        ({"crashed": 1}, {"wrong": 7}, "failure"),
        ({"crashed": 1}, {"wrong": 2}, "failure"),
        ({"crashed": 1}, {"wrong": 1}, "note"),
        ({"crashed": 2}, {"wrong": 1}, "note"),
        ({"out_of_memory": 2}, {"wrong": 1}, "failure"),
        ({"crashed": 1}, {"out_of_memory": 2}, "note"),
    ],
)
def test_one_bad_process_of_the_base_excuses_no_more_of_them_now(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: dict[str, int],
    now: dict[str, int],
    severity: str,
) -> None:
    def side(bad: dict[str, int]) -> tuple[Measurement, ...]:
        statuses = [status for status, count in bad.items() for _ in range(count)]
        return tuple(measured(status=status) for status in (*statuses, *["ok"] * (10 - len(statuses))))

    [finding] = judged(Evidence("main", (), (evidence("ok", base=side(base), now=side(now)),)))
    assert (finding.rule, finding.severity) == ("wrong", severity)
    assert bool(finding.advice) == (severity == "failure")


def test_nothing_is_said_of_what_was_decided(evidence: Callable[..., CaseEvidence]) -> None:
    found = Evidence("main", (), (evidence("regressed"),))
    assert not judged(found)
    assert not list(uncompared.judge(found))


def test_a_scenario_that_only_the_base_can_load_fails() -> None:
    broken = Broken("ci.yaml", (Problem("ci.yaml:3: op", "no op is named 'prelu'"),))
    [finding] = missing.judge(Evidence("main", (), (), broken=(broken,)))
    assert (finding.severity, finding.case) == ("failure", None)
    assert "ci.yaml:3: op: no op is named 'prelu'" in finding.message
    assert finding.advice == "main can load it: correct these lines of the scenario, or bring back what they name"
    problems = tuple(Problem(f"ci.yaml:{line}", "no") for line in range(1, 5))
    [finding] = missing.judge(Evidence("main", (), (), broken=(Broken("ci.yaml", problems),)))
    assert finding.message == "ci.yaml can't be loaded any more: ci.yaml:1: no; ci.yaml:2: no; ci.yaml:3: no"


@pytest.mark.parametrize("kind", ["new", "control", "library", "unsupported", "none"])
def test_a_gate_that_compared_no_case_of_ours_is_undecided(
    kind: str,
    case: Callable[..., Case],
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
) -> None:
    """So it was on a machine whose GPU was gone: torch was compared with torch, on the CPU, and all was green."""
    library = case("eager")
    never = (measured(**UNSUPPORTED),) * 3
    cases = {
        "new": (evidence(None, base=(), pairs=()),),
        "control": (evidence("ok", control=True),),
        "library": (evidence("ok", of=library),),
        "unsupported": (evidence(None, base=never, now=never, pairs=()), evidence("ok", of=library)),
        "none": (),
    }[kind]
    scenario = Scenario("s", "t", "prelu", tuple(found.case.id for found in cases), roles=(("eager", "baseline"),))
    whole = [f for f in uncompared.judge(Evidence("main", (scenario,), cases)) if f.case is None]
    assert [(f.severity, MESSAGE in f.message) for f in whole] == [("undecided", True)]


GONE, NEW = {"now": ()}, {"base": ()}


@one_test(
    ("before", "after", "told"),
    [
        (
            ("a/plain", "a/tuned"),
            ("b/plain", "b/tuned", "b/fast"),
            "the op 'a' of main is gone, and 'b' is new with the",
        ),
        (("a/plain",), ("a/simple",), "the variant 'a/plain' of main is gone, and 'a/simple' is new with the same 2"),
        (("a/plain", "a/tuned"), ("b/plain",), ""),  # not all of the cases have the like
        (("a/plain",), ("b/plain", "c/plain"), ""),  # which of both nobody knows
        (("a/plain",), ("b/simple",), ""),
        (("a/plain",), (), ""),
        ((), ("b/plain",), ""),
    ],
)
def test_a_name_that_is_gone_is_told_with_the_new_one_and_how_to_rename(
    case: Callable[..., Case],
    evidence: Callable[..., CaseEvidence],
    before: tuple[str, ...],
    after: tuple[str, ...],
    told: str,
) -> None:
    def found(names: tuple[str, ...], side: dict[str, Any]) -> list[CaseEvidence]:
        sizes = ((name.partition("/"), n) for name in names for n in (8, 9))
        return [evidence(None, of=case(variant, op, n), pairs=(), **side) for (op, _, variant), n in sizes]

    cases = (*found(before, GONE), *found(after, NEW))
    findings = [f for f in missing.judge(Evidence("main", (), cases)) if f.case is None]
    assert [(f.severity, f.message.startswith(told)) for f in findings] == ([("failure", True)] if told else [])
    for finding in findings:
        assert finding.advice.endswith("in a commit of its own, with --accept missing --accept uncompared")
    compared = (*cases, evidence("ok", of=case(op="other")))
    for finding in [f for f in missing.judge(Evidence("main", (), compared)) if f.case is None]:
        assert finding.advice.endswith("in a commit of its own, with --accept missing")


def test_a_name_that_both_sides_have_is_no_new_name(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    """A case that the base's machine couldn't run isn't gone, either."""
    old, new = case("plain", "a", 8), case("plain", "b", 8)
    kept = evidence("ok", of=case("plain", "b", 9))
    gone, come = evidence(None, of=old, pairs=(), **GONE), evidence(None, of=new, pairs=(), **NEW)
    assert [f.case for f in missing.judge(Evidence("main", (), (gone, come, kept)))] == [old]
    never = evidence(None, of=old, pairs=(), base=(measured(of=old, **UNSUPPORTED),), now=())
    assert [f.case for f in missing.judge(Evidence("main", (), (never, come)))] == [old]


def test_a_gate_whose_sides_have_no_case_in_common_says_so(evidence: Callable[..., CaseEvidence]) -> None:
    new, gone = evidence(None, pairs=(), **NEW), evidence(None, pairs=(), **GONE)
    for cases, message, advice in (
        ((new, gone), ": main has none of the cases that there are now", "they are compared from the next change on"),
        ((new, evidence("ok", control=True)), "(2 cases in all)", "see that both sides can measure the scenario"),
        ((gone,), ": all that main has are gone", "bring back a case"),
        ((), "(0 cases in all)", "see that both sides can measure the scenario"),
    ):
        [whole] = [f for f in uncompared.judge(Evidence("main", (), cases)) if f.case is None]
        assert whole.message.endswith(message)
        assert advice in whole.advice


def test_a_gate_whose_only_case_is_wrong_now_is_not_told_to_accept_that_nothing_was_compared(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    """The rule 'wrong' fails it, and what that rule finds can't be accepted."""
    cases = (evidence(None, pairs=(), now=(measured(**WRONG),) * 3),)
    assert list(uncompared.judge(Evidence("main", (), cases))) == []
    assert [f.severity for f in wrong.judge(Evidence("main", (), cases))] == ["failure"]
    both = (evidence(None, pairs=(), base=(measured(**WRONG),) * 3, now=(measured(**WRONG),) * 3),)
    assert [f.severity for f in uncompared.judge(Evidence("main", (), both))] == ["undecided"]


def test_one_case_of_ours_is_enough_to_have_compared_something(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence]
) -> None:
    pairs = (Pair(1e-3, 1e-3, "base", "screen"),)
    cases = (evidence("inconclusive", pairs=pairs), evidence(None, of=case(n=3), base=(), pairs=()))
    assert [f.severity for f in uncompared.judge(Evidence("main", (), cases))] == ["note"]


def test_runs_of_one_process_each_give_one_finding(
    case: Callable[..., Case], evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    """The reason is the same for all cases. A case with a reason of its own is told by itself."""
    short = [evidence(None, of=case(n=n), pairs=()) for n in range(1, 559)]
    bad = case(n=559)
    own = evidence(
        None, of=bad, pairs=(), base=(measured(of=bad), measured(of=bad, status="wrong")), now=(measured(of=bad),)
    )
    found = list(uncompared.judge(Evidence("main", (), (*short, own))))
    assert [finding.case for finding in found] == [bad, None]
    assert found[1].message == "558 cases have too few processes to decide (pairs: 0)"
    assert "--repeat" in found[1].advice
    [two] = uncompared.judge(Evidence("main", (), tuple(short[:2])))
    assert two.message == "2 cases have too few processes to decide (pairs: 0)"


def test_the_same_code_needs_no_comparison() -> None:
    [note] = uncompared.judge(Evidence("main", (), (), same=True))
    assert (note.severity, "--always" in note.advice) == ("note", True)


@one_test(
    ("base", "now", "severity"),
    [
        ([OK] * 3, [OK, PACE, OK], "undecided"),
        ([], [OK, PACE, OK], "undecided"),
        ([OK] * 4, [OK, PACE, OK, PACE], "failure"),
        ([OK] * 3, [PACE] * 3, "failure"),
        ([OK] * 5, [OK, PACE, OK, WRONG, OK], "failure"),
        ([OK, PACE, OK], [OK, PACE, OK], "note"),
    ],
)
def test_few_processes_whose_times_do_not_agree_are_undecided(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: list[dict[str, Any]],
    now: list[dict[str, Any]],
    severity: str,
) -> None:
    """Other work on the machine may make one look so."""
    sides = {
        side: tuple(measured(**{"error": "off by 3", **each}) for each in processes)
        for side, processes in (("base", base), ("now", now))
    }
    [finding] = wrong.judge(Evidence("main", (), (evidence(**sides),)))
    assert finding.severity == severity
    assert ("run the gate again" in finding.advice) == (severity == "undecided")
    assert finding.rests_on == (("now",) if severity == "undecided" else ())


@pytest.mark.parametrize(
    "function",
    [Recheck.novelty, Recheck._saved, Sampler._pretended, Clocks.complaint, clocks.left_behind],
    ids=lambda function: function.__qualname__,
)
def test_complaints_about_times_begin_as_the_gate_knows_them(function: Callable[..., Any]) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    returned = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    texts = [value.values[0].value for value in returned if isinstance(value, ast.JoinedStr)]  # type: ignore[attr-defined]
    assert texts
    assert all(text.startswith(ended._OF_TIMES) for text in texts)


def test_of_several_reasons_the_first_is_told(measured: Callable[..., Measurement]) -> None:
    first, second = (measured(status="crashed", error=f"{name}\nits trace") for name in ("first", "second"))
    told = ended.complaint([measured(), first, second])
    assert told == "ended as crashed in 2 of 3 processes: first"
    assert ended.complaint([measured()]) == ""
