from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.model import Claim, Measurement, Run, Traffic
from harness.report._claims import comparisons
from harness.report._frame import by_scenario
from harness.report._text import cell

SHAPES = ((("N", 2**20),), (("N", 2**22),))


@pytest.fixture
def answer(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Callable[[Claim], tuple[str, str]]:
    def ask(claim: Claim) -> tuple[str, str]:
        twice = Traffic(2**30, 2**30)
        cases = [
            measured("eager", "float32", SHAPES[0], 0.5, traffic=twice),
            measured("tuned", "float32", SHAPES[0], 1.0, traffic=Traffic(2**30, 0)),
            measured("slow", "float32", SHAPES[0], 0.25),
            measured("eager", "float32", SHAPES[1], 0.25),
            measured("tuned", "float32", SHAPES[1], 0.75),
            measured("slow", "float32", SHAPES[1], status="timeout"),
        ]
        ((scenario, lines),) = by_scenario(make_run(cases, claims=(claim,)))
        (comparison,) = comparisons(scenario, lines)
        return cell(comparison.claimed), cell(comparison.measured)

    return ask


@pytest.mark.parametrize(
    ("metric", "value", "claimed", "here"),
    [
        ("speedup", None, "faster", "2.00x"),
        ("traffic", None, "less", "0.50x"),
        ("speedup", 1.5, "1.50x", "2.00x"),
        ("traffic", 0.4, "0.40x", "0.50x"),
        ("bandwidth", 1.35e12, "1350 GB/s", "4000 GB/s"),
        ("of_peak", 0.9, "90.0%", "100.0%"),
        ("of_ceiling", 0.95, "95.0%", "100.0%"),
        ("time", 3e-6, "3.000 us", "2.097 us"),
    ],
)
def test_each_metric(
    answer: Callable[[Claim], tuple[str, str]], metric: str, value: float | None, claimed: str, here: str
) -> None:
    claim = Claim("R1", "tuned", metric, value, "V100", where="*/N1048576")
    assert answer(claim) == (claimed, here)


def test_several_cases_give_their_median_and_range(answer: Callable[[Claim], tuple[str, str]]) -> None:
    assert answer(Claim("R1", "tuned", "speedup", 2, "V100"))[1] == "2.50x (2.00x to 3.00x, 2 cases)"


def test_a_case_that_failed_is_left_out_of_the_range(answer: Callable[[Claim], tuple[str, str]]) -> None:
    assert answer(Claim("R1", "slow", "of_ceiling", 1, "V100"))[1] == "25.0%"


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (Claim("R1", "fast", "speedup", 2, "V100"), "'fast' wasn't run"),
        (Claim("R1", "tuned", "speedup", 2, "V100", over="peer:x"), "'peer:x' wasn't run"),
        (Claim("R1", "slow", "time", 2, "V100", where="*/N4194304"), "'slow' ended as timeout"),
        (Claim("R1", "tuned", "efficiency", 2, "V100"), "what it is compared with wasn't measured"),
        (Claim("R1", "tuned", "items", 2, "V100"), "'tuned' has no items a second"),
        (
            Claim("R1", "tuned", "per_joule", 2, "V100"),
            "there is no metric named 'per_joule'; name the file of the op that adds it, with --ops",
        ),
        (Claim("R1", "tuned", "time", 2, "V100", where="*/float16/*"), "no case here is like '*/float16/*'"),
    ],
)
def test_what_was_not_measured_says_why(answer: Callable[[Claim], tuple[str, str]], claim: Claim, reason: str) -> None:
    assert answer(claim)[1] == f"not measured: {reason}"
