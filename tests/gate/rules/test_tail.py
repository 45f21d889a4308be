"""The rule about calls that are slow now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.gate import Evidence
from harness.gate.records import CaseEvidence
from harness.gate.rules import tail
from harness.model import Measurement
from tests.one_test import one_test

EVEN = (1.0,) * 10
SOMETIMES = (*EVEN[1:], 21.0)  # the mean is three times the median


@one_test(
    ("base", "now", "told"),
    [
        ([EVEN] * 3, [SOMETIMES] * 3, True),
        ([EVEN] * 3, [SOMETIMES] * 2 + [EVEN], False),
        ([EVEN] * 2 + [SOMETIMES], [SOMETIMES] * 3, False),
        ([SOMETIMES] * 3, [SOMETIMES] * 3, False),
        ([EVEN] * 3, [(*EVEN[1:], 2.9)] * 3, False),  # 1.19 times
        ([EVEN] * 3, [(*EVEN[1:], 3.1)] * 3, True),
        # In the base the mean is twice the median.
        ([(*EVEN[1:], 11.0)] * 3, [(*EVEN[1:], 14.9)] * 3, False),
        ([(*EVEN[1:], 11.0)] * 3, [(*EVEN[1:], 15.1)] * 3, True),
        ([EVEN] * 3, [(*(0.5,) * 9, 11.0)] * 3, True),  # most calls became faster
        # Most calls became faster, and no call slower.
        ([EVEN] * 3, [tuple(value / 21 for value in SOMETIMES)] * 3, False),
    ],
)
def test_a_mean_that_every_process_shows_to_be_slower_is_told(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: list[tuple[float, ...]],
    now: list[tuple[float, ...]],
    told: bool,
) -> None:
    sides = {
        side: tuple(replace(measured(), samples=samples) for samples in processes)
        for side, processes in (("base", base), ("now", now))
    }
    failed = measured(status="crashed")
    sides["now"] += (failed,)
    found = judged(evidence(**sides))
    assert [(f.severity, f.rests_on) for f in found] == [("undecided", ("base", "now"))] * told
    assert not judged(evidence("regressed", **sides)), "it fails"
    assert not judged(evidence(None, **sides))
    assert not judged(evidence(**{**sides, "now": (failed,)}))
    assert len(judged(evidence("improved", **sides))) == told
    assert not judged(evidence(control=True, **sides))


def judged(found: CaseEvidence) -> list[Any]:
    return list(tail.judge(Evidence("main", (), (found,))))


def test_both_are_named(evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]) -> None:
    slow = replace(measured(), samples=SOMETIMES)
    [finding] = judged(evidence(base=(measured(1.0),) * 3, now=(slow,) * 3))
    assert "a mean of at least 3 times its median, in main of 1 times at most" in finding.message
    assert "--accept tail" in finding.advice
