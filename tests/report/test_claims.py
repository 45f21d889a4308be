from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.metrics import METRICS
from harness.model import Claim, Measurement, Run, Traffic
from harness.report.bounded import Bounded
from harness.report.claim_tables import claimed, explained, notes, table
from harness.report.claim_tables import measured as shown
from harness.report.claims import Comparison, Found, comparisons
from harness.report.text import cell
from tests.one_test import one_test

SHAPES = ((("N", 2**20),), (("N", 2**22),))


@pytest.fixture
def compared(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Callable[[Claim], Comparison]:
    def ask(claim: Claim) -> Comparison:
        twice = Traffic(2**30, 2**30)
        cases = [
            measured("eager", "float32", SHAPES[0], 0.5, traffic=twice),
            measured("tuned", "float32", SHAPES[0], 1.0, traffic=Traffic(2**30, 0), facts=(("kept_bytes", 8.0),)),
            measured("alike", "float32", SHAPES[0], 1.005, facts=(("kept_bytes", 64.0),)),
            measured("slow", "float32", SHAPES[0], 0.25),
            measured("eager", "float32", SHAPES[1], 0.25),
            measured("tuned", "float32", SHAPES[1], 0.75),
            measured("slow", "float32", SHAPES[1], status="timeout"),
            measured("other", "float32", SHAPES[1], 0.5),
        ]
        return of_run(make_run(cases, claims=(claim,)))

    return ask


def of_run(run: Run) -> Comparison:
    """The only claim of the only scenario of a run."""
    (comparison,) = comparisons(run.header.scenarios[0], run)
    return comparison


@pytest.fixture
def answer(compared: Callable[[Claim], Comparison]) -> Callable[[Claim], tuple[str, str]]:
    def ask(claim: Claim) -> tuple[str, str]:
        comparison = compared(claim)
        return cell(claimed(comparison)), cell(shown(comparison))

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


def test_the_cases_that_a_figure_is_made_of_are_known(compared: Callable[[Claim], Comparison]) -> None:
    for metric, variants in (("speedup", ["tuned", "eager"]), ("time", ["tuned"])):
        found = compared(Claim("R1", "tuned", metric, None, "V100", where="*/N1048576")).found
        assert [[line.case.variant for line in one.lines] for one in found] == [variants]


def test_a_case_that_failed_is_left_out_of_the_range(answer: Callable[[Claim], tuple[str, str]]) -> None:
    assert answer(Claim("R1", "slow", "of_ceiling", 1, "V100"))[1] == "25.0%"


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (Claim("R1", "fast", "speedup", 2, "V100"), "'fast' wasn't run"),
        (Claim("R1", "tuned", "speedup", 2, "V100", over="peer:x"), "'peer:x' wasn't run"),
        (Claim("R1", "slow", "time", 2, "V100", where="*/N4194304"), "'slow' ended as timeout"),
        (
            Claim("R1", "tuned", "kept", None, "V100", over="eager"),
            "this run doesn't say the bytes that a training step keeps",
        ),
        (Claim("R1", "tuned", "efficiency", 2, "V100"), "what it is compared with wasn't measured"),
        (Claim("R1", "tuned", "items", 2, "V100"), "'tuned' has no items a second"),
        (
            Claim("R1", "tuned", "instructions", None, "V100", over="eager"),
            "counters of both are needed, which 'harness profile ncu' finds",
        ),
        (
            Claim("R1", "tuned", "per_joule", 2, "V100"),
            "there is no metric named 'per_joule'; name the file of the op that adds it, with --ops",
        ),
        # The first shape lacks it, the second has it.
        (Claim("R1", "other", "kept", 2, "V100"), "this run doesn't say the bytes that a training step keeps"),
        (Claim("R1", "tuned", "time", 2, "V100", where="*/float16/*"), "no case here is like '*/float16/*'"),
    ],
)
def test_what_was_not_measured_says_why(answer: Callable[[Claim], tuple[str, str]], claim: Claim, reason: str) -> None:
    assert answer(claim)[1] == f"not measured: {reason}"


def test_where_the_text_gives_no_figure_the_report_says_so(compared: Callable[[Claim], Comparison]) -> None:
    found = compared(Claim("D4", "slow", "speedup", None, "V100", over="eager", says="nothing"))
    assert (claimed(found), cell(shown(found)), found.verdict) == ("no figure", "0.50x", None)
    (note,) = notes([found])
    assert (
        note.text
        == "D4 has no figure in the text (slow: speed-up over eager): here 0.50x [0.50x to 0.50x, one process]"
    )
    assert "on" not in [column.head for column in table([found]).columns], "a text without a figure has no hardware"


@pytest.mark.parametrize(
    ("metric", "over", "here"), [("traffic", "eager", "0.50x by count"), ("kept", "alike", "0.12x by count")]
)
def test_bytes_that_were_only_counted_are_said_to_be(
    compared: Callable[[Claim], Comparison], metric: str, over: str, here: str
) -> None:
    found = compared(Claim("D3", "tuned", metric, None, "V100", over=over, where="*/N1048576"))
    (note,) = notes([found])
    assert note.text.endswith(f": here {here}; can't tell")
    heads = {column.head: column.cells for column in table([found]).columns}
    assert heads["how"] == ("by count",)
    assert heads["verdict"] == ("can't tell",), "a count can't disagree, so it agrees with nothing"
    assert "By count" in " ".join(explained([found], "a GPU"))


def test_only_words_that_the_table_has_are_explained(compared: Callable[[Claim], Comparison]) -> None:
    plain = compared(Claim("R2", "tuned", "speedup", None, "A100", over="eager", says="nothing"))
    told = list(explained([plain], "a GPU"))
    assert told[0] == "What the texts say about their hardware, beside what was found here on a GPU."
    assert [text.split(":")[0] for text in told[1:]] == ["No figure", "Interval", "Over one process"]


@one_test(
    ("found", "bounds", "is_by_counters", "verdict"),
    [
        ((), None, False, None),
        ((("agrees", 0.9, 1.2, None), ("agrees", 0.8, 1.1, None)), (0.8, 1.2), False, "agrees"),
        ((("agrees", 0.9, 1.2, None), ("agrees", None, None, None)), None, False, "agrees"),
        ((("agrees", 0.9, 1.2, 1.0), ("can't tell", 0.9, 1.2, None)), (0.9, 1.2), True, "can't tell"),
        (((None, 0.9, 1.2, None), ("agrees", 0.9, 1.2, None)), (0.9, 1.2), False, None),
    ],
)
def test_what_cases_tell_together(
    found: tuple[tuple[Any, ...], ...],
    bounds: tuple[float, float] | None,
    is_by_counters: bool,
    verdict: str | None,
) -> None:
    """An interval and a verdict are of all cases, or there is none; a single case with counters is enough."""
    every = tuple(Found(Bounded(1.0, low, high, "samples", 1), told, (), count) for told, low, high, count in found)
    claim = Claim("R1", "tuned", "speedup", 1.5, "V100", "eager")
    comparison = Comparison(claim, METRICS["speedup"], "eager", every, len(every))
    assert (comparison.bounds, comparison.is_by_counters, comparison.verdict) == (bounds, is_by_counters, verdict)
