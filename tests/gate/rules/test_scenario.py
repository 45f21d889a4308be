"""The rule about scenarios that ask for less than the base's scenarios."""

from __future__ import annotations

import pytest

from harness.gate import Evidence
from harness.gate.records import Finding
from harness.gate.rules import scenario
from harness.metrics import METRICS
from harness.model import Expectation, Scenario
from tests.one_test import one_test

ROLES = (("eager", "baseline"), ("tuned", "ours"), ("naive", "published"))
CEILING = METRICS["of_ceiling"].title


def asked(*floors: Expectation, name: str = "ci", sizes: tuple[int, ...] = (8, 9), **fields: object) -> Scenario:
    """A scenario of prelu with three variants at these sizes."""
    cases = tuple(f"prelu/{variant}/float32/N{n}" for variant, _ in ROLES for n in sizes)
    return Scenario(name, "t", "prelu", cases, expect=floors, **{"roles": ROLES, **fields})


def judge(before: tuple[Scenario, ...], now: tuple[Scenario, ...], untold: tuple[str, ...] = ()) -> list[Finding]:
    return list(scenario.judge(Evidence("main", now, (), asked=now, before=before, untold=untold)))


OLD = asked(Expectation("tuned", "of_ceiling", 0.9), Expectation("tuned", "speedup", 1.5))


def test_the_same_or_a_stricter_scenario_says_nothing() -> None:
    stricter = asked(Expectation("tuned", "of_ceiling", 0.95), *OLD.expect[1:], Expectation("naive", "bandwidth", 1.0))
    assert judge((OLD,), (OLD,)) == judge((OLD,), (stricter,)) == []
    two = (asked(name="other"), OLD)
    assert judge((OLD,), two) == []


@one_test(
    ("floors", "words"),
    [
        ((Expectation("tuned", "of_ceiling", 0.8), OLD.expect[1]), f"{CEILING}, 90.0% in main, is 80.0% now: "),
        ((OLD.expect[1],), f"{CEILING}, 90.0% in main, is gone: prelu/tuned/float32/N8 and 1 more"),
        ((Expectation("tuned", "of_ceiling", 0.9, where="*/N9"), OLD.expect[1]), "is gone: prelu/tuned/float32/N8"),
        ((Expectation("naive", "of_ceiling", 0.9), OLD.expect[1]), "is gone"),
        # The first floor that matches a case counts.
        ((Expectation("tuned", "of_ceiling", 0.1, where="*/N8"), *OLD.expect), "is 10.0% now: prelu/tuned/float32/N8"),
    ],
)
def test_a_floor_that_is_lowered_or_gone_fails(floors: tuple[Expectation, ...], words: str) -> None:
    [finding] = judge((OLD,), (asked(*floors),))
    assert (finding.rule, finding.severity, finding.case) == ("scenario", "failure", None)
    assert words in finding.message
    assert "--accept scenario" in finding.advice


def test_another_scenario_may_not_hide_a_lowered_floor() -> None:
    """Each scenario holds its own cases: a strict floor at other sizes is no reason to lower this one."""
    small, large = asked(*OLD.expect, sizes=(8,)), asked(*OLD.expect, sizes=(9,), name="large")
    lowered = asked(Expectation("tuned", "of_ceiling", 0.5), OLD.expect[1], sizes=(8,))
    [finding] = judge((small, large), (lowered, large))
    assert "is 50.0% now: prelu/tuned/float32/N8" in finding.message
    assert finding.message.endswith("N8")


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_floors_of_a_case_the_strictest_counts(order: int) -> None:
    lax = asked(Expectation("tuned", "of_ceiling", 0.5), OLD.expect[1], name="lax")
    [finding] = judge((OLD, lax)[::order], (lax,))
    assert f"{CEILING}, 90.0% in main, is 50.0% now: " in finding.message
    assert judge((OLD, lax)[::order], (lax, OLD)[::order]) == []


def test_a_speed_up_over_an_easier_baseline_is_another_floor() -> None:
    [finding] = judge((OLD,), (asked(*OLD.expect, baseline="naive"),))
    assert "the floor of speed-up over eager, 1.50x in main, is gone" in finding.message


LOSSES, EXTREMES = "its losses don't count", "it may be wrong where inputs are extreme"


@one_test(("role", "less"), [("baseline", LOSSES), ("peer", LOSSES), ("control", LOSSES), ("published", EXTREMES)])
def test_what_is_no_longer_ours_is_held_to_less(role: str, less: str) -> None:
    roles = (ROLES[0], ("tuned", role), ROLES[2])
    [finding] = judge((OLD,), (asked(*OLD.expect, roles=roles),))
    assert finding.severity == "failure"
    assert finding.message.startswith(f"prelu/tuned has the role '{role}' now, 'ours' in main, so {less}: ")


def test_what_is_gone_is_left_to_another_rule() -> None:
    assert judge((OLD,), (asked(*OLD.expect, sizes=(8,)),)) == []


def test_what_the_base_does_not_tell_is_no_evidence() -> None:
    [finding] = judge((), (OLD,), ("the base can't load its own ci.yaml",))
    assert (finding.severity, finding.message) == ("undecided", "the base can't load its own ci.yaml")
