"""Rounds of several variants: in which order, how many, what counts of each, and the ratio of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from harness import interleaved
from harness.interleaved import Ratio
from harness.model import Timing
from harness.session import EndedError
from tests.one_test import one_test

TIMING = Timing(precision=0.01, max_time=7.0)


class Now:
    """A clock that a round moves by a second."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(interleaved, "time", now)
    return now


def steady(_: int) -> list[float]:
    return [1.0, 2.0, 9.0]


def noisy(number: int) -> list[float]:
    return [1.0 + number % 2] * 3


def samplers(now: Now, *kinds: Callable[[int], list[float]]) -> tuple[dict[str, Any], list[str]]:
    """Samplers of variants named a, b, ..., and the order in which they are asked."""
    asked: list[str] = []

    def sampler(name: str, kind: Callable[[int], list[float]]) -> SimpleNamespace:
        def take(count: int) -> list[float]:
            assert count == 3
            asked.append(name)
            now.seconds += 1 / len(kinds)
            return kind(asked.count(name))

        return SimpleNamespace(round=take)

    return {name: sampler(name, kind) for name, kind in zip("abc", kinds, strict=False)}, asked


def test_the_median_of_three_samples_counts_and_ten_rounds_are_enough_where_ratios_are_sure(now: Now) -> None:
    made, asked = samplers(now, steady, steady)
    assert interleaved._rounds(made, TIMING, 100.0) == ({"a": [2.0] * 10, "b": [2.0] * 10}, "interval")
    assert len(asked) == 20


def test_each_round_has_an_order_by_chance(monkeypatch, now):
    monkeypatch.setattr(interleaved.random, "shuffle", list.reverse)
    made, asked = samplers(now, steady, steady)
    interleaved._rounds(made, TIMING, 100.0)
    assert asked == ["b", "a", "a", "b"] * 5


@pytest.mark.parametrize(("seconds", "rounds"), [(3.0, 10), (15.0, 15), (15.5, 16), (1e9, 200)])
def test_rounds_that_are_never_sure_end_with_the_time(now: Now, seconds: float, rounds: int) -> None:
    made, _ = samplers(now, steady, noisy)
    found, stopped = interleaved._rounds(made, TIMING, seconds)
    assert ([len(one) for one in found.values()], stopped) == ([rounds] * 2, "time")


def test_without_a_variant_there_are_no_rounds(now: Now) -> None:
    assert interleaved._rounds({}, TIMING, 100.0) == ({}, "time")


def test_the_ratio_is_the_median_over_rounds() -> None:
    found = Ratio.of([4.0] * 9 + [400.0], [2.0] * 10)
    assert (found.value, found.low, found.rounds, found.verdict) == (2.0, 2.0, 10, "faster")


def test_few_rounds_have_no_interval() -> None:
    with pytest.raises(ValueError, match="5 rounds are too few"):
        Ratio.of([2.0] * 5, [1.0] * 5)


@one_test(
    ("low", "high", "verdict"),
    [(1.01, 1.2, "faster"), (0.8, 0.99, "slower"), (0.9, 1.1, "~"), (1.0, 1.1, "~"), (0.9, 1.0, "~"), (0.5, 1.5, "~")],
)
def test_a_verdict_is_sure_where_the_interval_lies_on_one_side_of_1(low: float, high: float, verdict: str) -> None:
    assert Ratio(1.0, low, high, 10).verdict == verdict
    assert str(Ratio(1.0, low, high, 10)) == f"1.000x [{low:.3f}, {high:.3f}] {verdict}, 10 rounds"


def test_rounds_are_sure_where_each_ratio_to_the_first_is() -> None:
    ups, same = [1.0, 2.0] * 10, [1.0] * 20
    assert interleaved._is_precise([ups, ups], 0.01), "what moves all alike moves no ratio"
    assert not interleaved._is_precise([ups, [2 / one for one in ups]], 0.01)
    assert not interleaved._is_precise([same, same, ups], 0.01)
    assert interleaved._is_precise([same, same], 0.0)
    assert interleaved._is_precise([same], 0.01)
    assert not interleaved._is_precise([ups], 0.01), "a single variant has its time"


def test_sessions_are_open_while_variants_are_timed_and_one_that_fails_has_no_rounds(monkeypatch):
    done: list[str] = []

    class Session:
        def __init__(self, case: Any, *_: object) -> None:
            self.case = case
            self.phases: list[tuple[str, float]] = []

        def __enter__(self) -> None:
            done.append(f"open {self.case.variant}")

        def __exit__(self, *_: object) -> None:
            done.append(f"close {self.case.variant}")

    def ready(session: Session) -> None:
        if session.case.variant == "wrong":
            raise EndedError("wrong", "off by 1")

    def rounds(of: Mapping[str, Any], timing: Timing, seconds: float) -> Any:
        done.append(f"{[*of]} in {seconds:g} s")
        return {name: [1.0] for name in of}, "interval"

    def finish(name: str) -> dict[str, object]:
        if name == "late":
            raise EndedError("wrong", "late")
        return {"samples": name}

    monkeypatch.setattr(interleaved, "Session", Session)
    monkeypatch.setattr(interleaved, "ready", ready)
    monkeypatch.setattr(interleaved, "_rounds", rounds)
    monkeypatch.setattr(interleaved, "made", lambda session, *rest: (session.case.variant, *rest, session.phases))
    monkeypatch.setattr(
        interleaved,
        "Sampler",
        lambda session, _: SimpleNamespace(seconds=3.0, finish=lambda *_: finish(session.case.variant)),
    )
    cases: Any = [SimpleNamespace(variant=name) for name in ("good", "wrong", "late")]
    device: Any = SimpleNamespace(conditions=lambda: "conditions")
    measured, seconds = interleaved.interleaved(cases, None, device, TIMING)
    assert measured == [
        ("good", "ok", {"samples": "good"}, [("sample", 3.0)]),
        ("wrong", "wrong", {"error": "off by 1"}, []),
        ("late", "wrong", {"error": "late"}, [("sample", 3.0)]),
    ]
    assert seconds == {"good": (1.0,)}
    assert done == [
        "open good", "open wrong", "open late", "['good', 'late'] in 14 s", "close late", "close wrong", "close good",
    ]  # fmt: skip
