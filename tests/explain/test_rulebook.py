"""What becomes of reasons that are small, and what is said of what warps wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.explain import Known, Reason, Seen, explain, verdict
from harness.model import KernelProfile
from tests.one_test import one_test


class Finding:
    """A rule that finds reasons which save these shares of the time, one of each kernel."""

    SUMMARY = "finds what it is told"
    EFFECT_OF = ()

    def __init__(self, *shares: float) -> None:
        self._shares = shares

    def judge(self, known: Known) -> list[Reason]:
        return [Reason("one", f"{share}", ("a line",), "", share * known.time) for share in self._shares]


def launched(known: Known, *kernels: tuple[str, float, dict[str, float]]) -> Known:
    """The same with other kernels: name, share of the time, and figures."""
    seen = (Seen(KernelProfile(name, 1.0, tuple(values.items())), share, share) for name, share, values in kernels)
    return replace(known, kernels=tuple(seen))


@one_test(
    ("shares", "kernels", "told"),
    [
        ((0.02, 0.015), 2, [("0.02", 0.035)]),
        ((0.014, 0.02), 2, [("0.02", 0.034)]),
        ((0.02, 0.015), 1, []),  # reasons of one kernel don't add up
        ((0.02,), 2, []),
        ((0.014, 0.015), 2, []),  # less than 3% together
        ((0.02, 0.04), 2, [("0.04", 0.04)]),  # what matters alone stands for itself
        ((0.02, 0.012, 0.01), 3, [("0.02", 0.042)]),
    ],
)
def test_what_matters_only_together_is_told_once(
    copying: Callable[..., Known], shares: tuple[float, ...], kernels: int, told: list[tuple[str, float]]
) -> None:
    known = launched(copying(), *((f"k{number}", 1 / kernels, {}) for number in range(kernels)))
    rules: Any = {"one": Finding(*shares)}
    reasons = explain(known, rules)
    assert [reason.verdict for reason in reasons] == [text for text, _ in told]
    assert [reason.saves for reason in reasons] == pytest.approx([share * known.time for _, share in told])
    if told and told[0][1] > max(shares):
        others = "1 other kernel" if len(shares) == 2 else "2 other kernels"
        assert reasons[0].sums[1].startswith(f"the same in {others}: together they save at most ")


def test_the_longest_wait_is_told_of_the_largest_kernel(copying: Callable[..., Known]) -> None:
    counted = {"read_bytes": 2.0**29, "written_bytes": 2.0**29}
    waits = {"stall_a": 0.2, "stall_z": 0.1, "stall_m": 0.5}
    known = launched(
        copying(),
        ("small", 0.3, counted | {"stall_other": 0.9}),
        ("large", 0.7, counted | waits),
        ("none", 0.0, counted),
    )
    assert verdict(known, ()).endswith(" Its warps spend most of their time in 'stall_m': 50%.")
    assert "Its warps" not in verdict(launched(copying(), ("only", 1.0, counted)), ())
