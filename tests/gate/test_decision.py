from __future__ import annotations

import importlib
import math
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness import stats
from harness.gate import centre, looks, noise_store, offsets
from harness.gate import deciding as gate
from harness.gate.records import TELL_MOST, Decision, Margin, change, share
from tests.one_test import one_test
from tests.rare import rare

MARGIN = Margin(0.01)
ONE = {"a": MARGIN}


def spread(mean: float, deviation: float, count: int) -> list[float]:
    """Changes with just this mean and standard deviation."""
    ramp = [index - (count - 1) / 2 for index in range(count)]
    scale = deviation / (sum(x * x for x in ramp) / (count - 1)) ** 0.5
    return [mean + scale * x for x in ramp]


def screened(changes: Sequence[float], margin: Margin = MARGIN) -> Decision | None:
    return gate.screened({"a": changes}, {"a": margin})["a"]


def looked(changes: Sequence[float], look: int = 1, suspects: int = 1, margin: Margin = MARGIN) -> Decision:
    return gate.looked({"a": changes}, {"a": margin}, look, suspects)["a"]


# --- the screen ---


def test_the_screen_settles_what_is_clear() -> None:
    found = screened([0.001, -0.001, 0.0005, -0.0005])
    assert (found.outcome, found.stage, found.pairs, found.p) == ("ok", "screen", 4, None)
    assert found.estimate == 0
    assert change(-0.01) < found.low < 0 < found.high
    assert screened(spread(0.03, 0.001, 4)).outcome == "improved"
    assert screened(spread(0.011, 0.001, 4)).outcome == "ok"  # better, by no more than a margin


@one_test(
    "changes",
    [spread(-0.05, 0.0001, 4), spread(-0.0095, 0.001, 4), spread(0.0, 0.02, 4), [0.0, 0.0], []],
    ids=["slower", "at the margin", "noisy", "too few", "none"],
)
def test_all_others_are_suspects(changes: list[float]) -> None:
    assert screened(changes) is None


def test_a_noise_floor_widens_the_margin() -> None:
    changes = spread(-0.02, 0.001, 4)
    assert screened(changes) is None
    assert screened(changes, Margin(0.015, 0.03)).outcome == "ok"
    assert looked(spread(-0.02, 0.001, 10)).outcome == "regressed"
    assert looked(spread(-0.02, 0.001, 10), margin=Margin(0.015, 0.03)).outcome == "ok"


@one_test(
    ("mean", "outcome"),
    [(0.0, "inconclusive"), (-0.5, "inconclusive"), (-1.0, "regressed"), (0.5, "inconclusive"), (1.0, "improved")],
)
def test_a_case_that_is_too_noisy_never_passes_but_may_fail(mean: float, outcome: str) -> None:
    """A noise of 50%: code that is twice as slow, ln 2 = 0.69, lies at the limit."""
    noisy = Margin(0.01, 0.5)
    found = looked(spread(mean, 0.01, 10), margin=noisy)
    assert (found.outcome, found.pairs_to_tell) == (outcome, None)
    first = screened(spread(mean, 0.01, 3), noisy)
    assert first is None if outcome == "regressed" else first.outcome == outcome
    for count in (4, 10):
        kept = gate.stored({"a": spread(mean, 0.01, count)}, {"a": noisy})["a"]
        assert kept.outcome == ("inconclusive" if (outcome, count) == ("regressed", 4) else outcome)


def test_twice_as_slow_never_passes_whatever_the_noise_floor() -> None:
    for noise in (0.02, 0.3, 0.5, 0.7, 0.99):
        margin = {"a": Margin(0.01, noise)}
        found = gate.decided({"a": spread(-0.69, 0.01, 3)}, {"a": spread(-0.69, 0.01, 20)}, margin)["a"]
        assert found.outcome in ("regressed", "inconclusive")
        assert (found.outcome == "regressed") == (noise < 0.49)


# --- the looks ---


@one_test(("mean", "outcome"), [(-0.03, "regressed"), (-0.0101, "inconclusive"), (-0.005, "ok"), (0.03, "improved")])
def test_a_look_decides(mean: float, outcome: str) -> None:
    found = looked(spread(mean, 0.002, 10))
    assert (found.outcome, found.stage, found.pairs) == (outcome, "confirm", 10)
    assert (found.pairs_to_tell is None) == (outcome != "inconclusive")


@pytest.mark.slow  # the tests around have each verdict
def test_verdicts_are_what_the_bounds_say() -> None:
    rng = random.Random(5)
    seen = set()
    for _ in range(300):
        keys = [str(number) for number in range(rng.randint(1, 5))]
        means = {key: MARGIN.limit + rng.choice((-0.006, 0.0, 0.006)) for key in keys}
        changes = {key: [rng.gauss(mean, 0.004) for _ in range(10)] for key, mean in means.items()}
        for found in gate.looked(changes, dict.fromkeys(keys, MARGIN), 2, len(keys)).values():
            assert (found.outcome == "regressed") == (found.high < MARGIN.limit)
            assert (found.outcome in {"ok", "improved"}) == (found.low > MARGIN.limit)
            seen.add(found.outcome)
    assert seen >= {"regressed", "inconclusive", "ok"}


def test_the_second_look_has_most_of_the_level() -> None:
    changes = spread(-0.015, 0.004, 10)
    assert [looked(changes, look).outcome for look in (1, 2)] == ["inconclusive", "regressed"]
    assert sum(looks.LOOK_ALPHAS) <= gate.ALPHA


def test_levels_of_all_looks_add_up_to_what_they_may_spend() -> None:
    """The first two have the whole level for OK each, later ones as much again together."""
    assert [looks.pass_level(look) for look in range(1, 6)] == [0.05, 0.05, 0.025, 0.0125, 0.00625]
    assert [looks.look_alpha(look) for look in range(1, 5)] == [0.001, 0.003, 0.001, 0.0005]
    every = range(1, looks.MOST_LOOKS + 1)
    assert sum(map(looks.look_alpha, every)) <= looks.PAIRS_ALPHA


def test_holm_among_suspects() -> None:
    changes = spread(-0.0165, 0.004, 10)  # p = 0.0003
    assert looked(changes, 2, suspects=5).outcome == "regressed"
    assert looked(changes, 2, suspects=12).outcome == "inconclusive"
    # Eleven that are clearly slow leave the twelfth its whole level.
    all_slow = {str(number): spread(-0.05, 0.001, 10) for number in range(11)} | {"a": changes}
    found = gate.looked(all_slow, dict.fromkeys(all_slow, MARGIN), 2, 12)
    assert {decision.outcome for decision in found.values()} == {"regressed"}


def test_a_bound_beyond_all_numbers_is_a_share_all_the_same() -> None:
    assert share(1e6) > 1e300
    assert share(-1e6) == -1


def test_times_without_any_spread() -> None:
    assert screened([0.0] * 4).outcome == "ok"
    assert looked([-0.011] * 10).outcome == "regressed"
    assert looked([-0.009] * 10).outcome == "ok"
    at_the_margin = looked([MARGIN.limit] * 10)
    assert (at_the_margin.outcome, at_the_margin.pairs_to_tell) == ("inconclusive", TELL_MOST)


@one_test(("mean", "noise"), [(-0.014, 0.012), (-0.012, 0.006), (-0.008, 0.006), (-0.004, 0.012)])
def test_as_many_pairs_as_it_says_would_tell(mean: float, noise: float) -> None:
    found = looked(spread(mean, noise, 10), look=2)
    assert found.outcome == "inconclusive"
    assert looks.CONFIRM_PAIRS < found.pairs_to_tell < TELL_MOST
    more = looked(spread(mean, noise, found.pairs_to_tell), look=2)
    assert more.outcome == ("regressed" if mean < MARGIN.limit else "ok")


def told(value, margin):
    """The pairs that would decide about a case whose centre is there, and what they were asked to tell."""
    asked: list[tuple[float, ...]] = []
    centre: Any = SimpleNamespace(value=value, count_to_tell=lambda *what: asked.append(what) or 15)
    return gate._pairs_to_tell(centre, margin, 0.001), asked


def test_pairs_are_told_for_the_decision_that_the_centre_is_on_the_way_to() -> None:
    """Fifteen are needed, so twenty, at which the gate looks. OK takes a level of 5%, a loss the level of the test."""
    limit, power = MARGIN.limit, (0.9, TELL_MOST)
    assert told(-0.001, MARGIN) == (20, [(limit, looks.PASS_LEVEL, *power)])
    assert told(-0.02, MARGIN) == (20, [(limit, 0.001, *power)])
    noisy = Margin(0.01, 0.5)
    assert told(0.0, noisy) == told(noisy.fail_limit + 0.01, noisy) == (None, [])
    assert told(noisy.fail_limit - 0.01, noisy) == (20, [(noisy.fail_limit, 0.001, *power)])


def test_cases_with_too_few_pairs_are_left_out() -> None:
    changes = {"a": [0.0] * 10, "b": [0.0] * 2, "c": []}
    margins = dict.fromkeys(changes, MARGIN)
    assert list(gate.looked(changes, margins, 1, 3)) == ["a"]
    assert list(gate.stored(changes, margins)) == ["a"]
    assert list(gate.decided(changes, changes, margins)) == ["a"]
    assert gate.SCREEN_PAIRS >= gate.LEAST_PAIRS, "a screen decides"


# --- stored runs ---


def test_a_few_stored_pairs_acquit_but_never_convict() -> None:
    found = gate.stored({"a": spread(-0.5, 0.001, 9), "b": [0.0] * 3}, {"a": MARGIN, "b": MARGIN})
    assert (found["a"].outcome, found["a"].stage, found["a"].pairs_to_tell) == ("inconclusive", "screen", 10)
    assert found["b"].outcome == "ok"


def test_stored_runs_of_enough_pairs_are_decided_at_once_among_all_cases() -> None:
    slow = spread(-0.015, 0.004, 10)  # p = 0.0017
    assert gate.stored({"a": slow}, ONE)["a"].outcome == "regressed"
    # The same pairs chose the suspect, so cases that are well count too.
    changes = {"a": slow} | {str(number): [0.0] * 10 for number in range(11)}
    found = gate.stored(changes, dict.fromkeys(changes, MARGIN))
    assert list(found) == list(changes)
    assert [found[key].outcome for key in ("a", "0")] == ["inconclusive", "ok"]


# --- all of it ---


def test_the_screen_does_not_count_in_the_confirmation() -> None:
    unlucky, well = spread(-0.05, 0.001, 4), spread(0.0, 0.001, 20)
    found = gate.decided({"a": unlucky}, {"a": well}, ONE)["a"]
    assert (found.outcome, found.stage, found.pairs) == ("ok", "confirm", 10)
    assert found.estimate == pytest.approx(sum(well[:10]) / 10)


def test_only_the_undecided_go_on() -> None:
    quiet, noisy = spread(0.0, 0.001, 4), spread(0.0, 0.02, 4)
    screen = {"well": quiet, "slow": noisy, "late": noisy, "never": noisy}
    confirm = {
        "well": [-0.5] * 20,
        "slow": [*spread(-0.03, 0.001, 10), *[0.5] * 10],
        "late": [*spread(-0.02, 0.02, 10), *spread(-0.03, 0.001, 10)],
        "never": spread(-0.01, 0.02, 10) * 2,
    }
    found = gate.decided(screen, confirm, dict.fromkeys(screen, MARGIN))
    assert {key: (decision.outcome, decision.stage, decision.pairs) for key, decision in found.items()} == {
        "well": ("ok", "screen", 4),
        "slow": ("regressed", "confirm", 10),
        "late": ("regressed", "confirm", 20),
        "never": ("inconclusive", "confirm", 20),
    }


def test_who_is_found_regressed_leaves_the_others_more_of_the_level() -> None:
    late = [*spread(-0.01, 0.004, 10), *spread(-0.022, 0.004, 10)]  # p = 0.002 after both looks
    slow, never = spread(-0.05, 0.001, 10) * 2, spread(-0.01, 0.02, 10) * 2
    for others, outcome in ((slow, "regressed"), (never, "inconclusive")):
        confirm = {str(number): others for number in range(9)} | {"late": late}
        screen = dict.fromkeys(confirm, spread(0.0, 0.02, 4))
        found = gate.decided(screen, confirm, dict.fromkeys(confirm, MARGIN))["late"]
        assert (found.outcome, found.pairs) == (outcome, 20)
        assert 0.003 / 10 < found.p < 0.003


# --- looks ---


def test_the_levels_of_all_looks_there_can_be_add_up_to_what_pairs_may_spend() -> None:
    every = range(1, looks.MOST_LOOKS + 1)
    assert [looks.pairs_at(look) for look in every] == [10, 20, 40, 80, 160, 320, 640] == [*map(looks.pairs_at, every)]
    assert [looks.look_alpha(look) for look in (1, 2)] == [0.001, 0.003]
    assert looks.PAIRS_ALPHA * 0.98 < sum(map(looks.look_alpha, every)) < looks.PAIRS_ALPHA
    assert sum(looks.look_alpha(look) for look in range(1, 60)) == pytest.approx(looks.PAIRS_ALPHA)
    assert pytest.approx(0.01) == gate.ALPHA
    assert sum(looks.pass_level(look) for look in range(3, 60)) == pytest.approx(looks.PASS_LEVEL)
    assert [looks.looks_for(pairs) for pairs in (1, 10, 11, 40, 41, 640, 9999)] == [1, 1, 2, 3, 4, 7, 7]


@pytest.mark.parametrize("mean", [-0.0115, -0.0085])
def test_more_looks_decide_what_two_leave_open(mean: float) -> None:
    screen, confirm = {"a": spread(0.0, 0.02, 3)}, {"a": [mean + 0.004 * (-1) ** pair for pair in range(160)]}
    assert gate.decided(screen, confirm, ONE)["a"].outcome == "inconclusive"
    found = gate.decided(screen, confirm, ONE, most=5)["a"]
    assert found.outcome == ("regressed" if mean < MARGIN.limit else "ok")
    assert found.pairs in (40, 80, 160)


def test_a_loss_between_what_passes_and_what_fails_is_undecided_whatever_the_pairs() -> None:
    """Noise could make identical code look so slow, but nobody has accepted so large a loss."""
    margin = Margin(0.01, 0.015, 0.03)
    assert (margin.value, margin.failing) == (0.02, 0.03)
    outcomes = {}
    for loss in (0.019, 0.025, 0.031):
        found = looked(spread(change(-loss), 0.0001, 20), look=2, margin=margin)
        outcomes[loss] = found.outcome, found.pairs_to_tell
    assert outcomes == {0.019: ("ok", None), 0.025: ("inconclusive", None), 0.031: ("regressed", None)}


def test_a_waiver_moves_both_limits() -> None:
    waived = Margin(0.01, 0.001, 0.002, waived=0.03)
    for loss, outcome in ((0.029, "ok"), (0.031, "regressed"), (0.0, "ok")):
        assert looked(spread(change(-loss), 0.0001, 10), margin=waived).outcome == outcome


# --- how often it errs: the simulation of scripts/gate_simulation.py, short ---


@pytest.fixture(scope="module")
def simulation() -> Iterator[ModuleType]:
    folder = str(Path(__file__).parents[2] / "scripts")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("gate_models")
    finally:
        sys.path.remove(folder)


def missed(simulation: ModuleType, blocks: int, models: Collection[str]) -> set[str]:
    """The bars of these models of noise that don't hold, of single cases and of runs of a dozen."""
    bars = [bar for bar in simulation.BARS if bar.model in models and bar.cases <= 12]
    wanted = [setting for setting in simulation.settings() if any(bar.about(setting) for bar in bars)]
    results = [simulation.result(replace(s, runs=max(60, blocks // s.cases)), n) for n, s in enumerate(wanted)]
    return {_named(bar) for bar in bars if not bar.holds([replaced(results, wanted, bar)])}


def replaced(results: Sequence[Any], wanted: Sequence[Any], bar: Any) -> Any:
    return next(found for found, setting in zip(results, wanted, strict=True) if bar.about(setting))


def _named(bar: Any) -> str:
    return f"{bar.model} {bar.loss} {bar.figure}"


@pytest.mark.parametrize(
    "model", ["steady", *map(rare, ("outliers", "slow", "heavy", "bimodal", "drifting", "ordered"))]
)
def test_errors_are_as_rare_as_asked_for(simulation: ModuleType, model: str) -> None:
    assert missed(simulation, 500, [model]) == set()


# The tests of looks, margins, offsets and means fail when one of these is changed.
@pytest.mark.parametrize(
    ("target", "name", "value", "bars"),
    [
        rare(looks, "LOOK_ALPHAS", (1e-6, 1e-6), {"slow 0.03 regressed"}, id="too lenient"),
        rare(Margin, "fail_limit", 0.0, {"steady 0.01 regressed"}, id="tests zero, not the margin"),
        rare(noise_store, "ASSUMED", offsets.Offset(1e-6), {"steady 0.0 run_1"}, id="no offsets"),
        rare(offsets, "OFFSET_ALPHA", 0.9, {"steady 0.0 run_1"}, id="offsets of one case"),
        rare(centre, "LEAST_TRIMMED", math.inf, {"outliers 0.0 run_3", "outliers 0.03 found"}, id="the plain mean"),
    ],
)
def test_the_simulation_notices(
    simulation: ModuleType, monkeypatch: pytest.MonkeyPatch, target: object, name: str, value: object, bars: set[str]
) -> None:
    monkeypatch.setattr(target, name, value)
    assert missed(simulation, 400, {bar.partition(" ")[0] for bar in bars}) >= bars


@pytest.mark.slow  # test_holm_among_suspects has that suspects share the level
def test_a_dozen_cases_at_the_limit_fail_no_more_often_than_one(
    simulation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = noise_store.Noise(Path("none"), "", {}).margin("a", "", 0.01, 12).failing
    at_the_limit = simulation.Setting("run", "steady", loss, runs=100, cases=12, changed=12)
    chance = 3 * (0.004 * 0.996 / 100) ** 0.5
    assert simulation.result(at_the_limit, 1).run_1 <= 0.004 + chance
    monkeypatch.setattr(gate, "holm", lambda ps, level, _: [stats.Tested(p <= level, level) for p in ps])
    assert simulation.result(at_the_limit, 1).run_1 > 0.004 + chance
