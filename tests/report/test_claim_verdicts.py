"""What a claim is judged by, and how: intervals over processes, recordings, calls and samples; three verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import scipy  # which imports scipy.stats, a second's work, where it is used

from harness import metrics, units
from harness.metrics import METRICS, Metric
from harness.model import Attachment, Claim, KernelProfile, Measurement, Run, Work
from harness.report import build
from harness.report.bounded import Bounded
from harness.report.claim_tables import explained, interval, interval_over, notes, table
from harness.report.claims import Comparison, comparisons, judged
from harness.report.formats.markdown import render
from harness.report.text import cell
from tests.one_test import one_test

SHAPE = (("N", 2**20),)
Build = Callable[..., Measurement]
Make = Callable[..., Run]


def only(run: Run) -> Comparison:
    (found,) = comparisons(run.header.scenarios[0], run)
    return found


def of(times: Sequence[float], spread: float = 1e-3) -> dict[str, Any]:
    """Samples around a median: 11 of them, of which the second and the tenth are the bounds of its interval."""
    return {"samples": tuple(times[0] * (1 + (place - 5) * spread / 4) for place in range(11))} if times else {}


# ---- What counts as agreeing.


@one_test(
    ("says", "value", "low", "high", "verdict"),
    [
        ("better", 2.0, 1.95, 9.0, "agrees"),
        ("better", 2.0, 1.93, 2.1, "can't tell"),
        ("better", 2.0, 1.2, 1.93, "disagrees"),
        ("worse", 0.8, 0.5, 0.82, "agrees"),
        ("worse", 0.8, 0.81, 0.83, "can't tell"),
        ("worse", 0.8, 0.83, 0.99, "disagrees"),
        ("equal", 1.0, 0.98, 1.02, "agrees"),
        ("equal", 1.0, 0.9, 1.1, "can't tell"),
        ("equal", 1.0, 1.04, 1.1, "disagrees"),
        ("equal", 1.0, 0.5, 0.96, "disagrees"),
        ("better", None, 1.011, 1.2, "agrees"),
        ("better", None, 1.005, 1.2, "can't tell"),
        ("better", None, 0.995, 1.005, "disagrees"),
        ("worse", None, 0.8, 0.98, "agrees"),
        ("worse", None, 0.995, 1.005, "disagrees"),
    ],
)
def test_a_verdict_is_of_the_whole_interval(
    says: Any, value: float | None, low: float, high: float, verdict: str
) -> None:
    claim = Claim("R1", "tuned", "speedup", value, "V100", "eager", says=says)
    found = Bounded((low + high) / 2, low, high, "samples", 1)
    assert judged(claim, METRICS["speedup"], found) == verdict


@pytest.mark.parametrize(("says", "verdict"), [("better", "agrees"), ("worse", "disagrees"), ("equal", "disagrees")])
def test_of_what_is_better_when_lower_less_is_as_good(says: Any, verdict: str) -> None:
    claim = Claim("D3", "bits", "memory", 0.9, "any", "bytes", says=says)
    lower = replace(METRICS["traffic"], by_count=False)
    assert judged(claim, lower, Bounded(0.8, 0.79, 0.81, "processes", 3)) == verdict


def test_how_near_is_near_is_the_claim_s_to_say() -> None:
    claim = Claim("R4", "tuned", "speedup", 2.0, "V100", "eager")
    found = Bounded(1.85, 1.84, 1.86, "samples", 1)
    assert judged(claim, METRICS["speedup"], found) == "disagrees"
    assert judged(replace(claim, within=0.1), METRICS["speedup"], found) == "agrees"


@one_test("metric", ["time", "bandwidth", "items", "flops"])
def test_nothing_here_can_tell_whether_other_hardware_has_a_rate(metric: str) -> None:
    claim = Claim("O2", "amp", metric, 1472.0, "V100")
    assert judged(claim, METRICS[metric], Bounded(3000.0, 2999.0, 3001.0, "processes", 3)) == "can't tell"


def test_without_an_interval_nothing_is_told(measured: Build, make_run: Make) -> None:
    few = [measured(name, "float32", SHAPE, samples=(t, t, t)) for name, t in (("eager", 2e-6), ("tuned", 1e-6))]
    found = only(make_run(few, claims=(Claim("R1", "tuned", "speedup", 1.5, "V100", "eager"),)))
    assert (found.values, found.bounds, found.verdict) == ((2.0,), None, "can't tell")
    assert "interval" not in [column.head for column in table([found]).columns]


def test_cases_that_differ_are_counted(measured: Build, make_run: Make) -> None:
    shapes = [(("N", 2**k),) for k in (20, 21, 22, 23)]
    cases = [measured("a", "float32", shape, 0.5) for shape in shapes]
    cases += [measured("b", "float32", s, share) for s, share in zip(shapes, (0.6, 0.7, 0.4, 0.5051), strict=True)]
    found = only(make_run(cases, claims=(Claim("O20", "b", "speedup", None, "V100", "a"),)))
    assert found.verdict == "can't tell"
    assert found.told == "can't tell: agrees in 2 of 4 cases, disagrees in 1, can't tell in 1"


# ---- What the interval is over.


def test_with_one_process_each_time_is_at_the_end_that_is_worst(measured: Build, make_run: Make) -> None:
    cases = [measured("eager", "float32", SHAPE, **of([2e-6])), measured("tuned", "float32", SHAPE, **of([1e-6], 2e-3))]
    found = only(make_run(cases, claims=(Claim("R1", "tuned", "speedup", 1.5, "V100", "eager"),)))
    assert found.bounds == pytest.approx((2 * 0.999 / 1.002, 2 * 1.001 / 0.998))
    assert interval_over(found) == "one process"
    (note,) = notes([found])
    assert note.text == (
        "R1 claims 1.50x or more (tuned: speed-up over eager, V100): here 2.00x [1.99x to 2.01x, one process]; agrees"
    )
    told = " ".join(explained([found], "a GPU"))
    assert "the interval holds the noise within that process alone" in told


def test_with_several_processes_the_interval_is_student_s_over_their_ratios(measured: Build, make_run: Make) -> None:
    """The ratio of each process: 2.0, 2.2, 2.1. Within a process there is next to no noise."""
    ratios = (2.0, 2.2, 2.1)
    cases = [
        measured(name, "float32", SHAPE, process=process, **of([time]))
        for process, ratio in enumerate(ratios)
        for name, time in (("eager", ratio * 1e-6), ("tuned", 1e-6))
    ]
    claim = Claim("R1", "tuned", "speedup", 2.0, "V100", "eager")
    found = only(make_run(cases, claims=(claim,)))
    logs = [math.log(ratio) for ratio in ratios]
    exact = scipy.stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert found.bounds == pytest.approx((math.exp(exact.low), math.exp(exact.high)))
    assert (interval_over(found), found.verdict) == ("3 processes", "can't tell")
    told = " ".join(explained([found], "a GPU"))
    assert "Over processes: by Student's t" in told
    assert "one process" not in told
    narrow = only(make_run([replace(m, samples=m.samples) for m in cases], claims=(replace(claim, value=1.5),)))
    assert narrow.verdict == "agrees"


def test_a_process_that_failed_a_case_has_no_part_in_it(measured: Build, make_run: Make) -> None:
    cases = [measured("eager", "float32", SHAPE, process=process, **of([2e-6])) for process in range(3)]
    cases += [measured("tuned", "float32", SHAPE, process=process, **of([1e-6])) for process in range(2)]
    found = only(make_run(cases, claims=(Claim("R1", "tuned", "speedup", 1.5, "V100", "eager"),)))
    assert interval_over(found) == "2 processes"


def test_what_variants_report_needs_several_processes(measured: Build, make_run: Make) -> None:
    cases = [
        measured("tuned", "float32", SHAPE, process=process, facts=(("kept_bytes", value),))
        for process, value in enumerate((100.0, 101.0, 99.0))
    ]
    claim = Claim("R1", "tuned", "kept_bytes", 100.0, "V100", says="equal", within=0.1)
    assert only(make_run(cases, claims=(claim,))).bounds == pytest.approx((97.5, 102.5), abs=0.1)
    assert only(make_run(cases[:1], claims=(claim,))).bounds is None


def test_scaling_efficiency_depends_on_both_times(measured: Build, make_run: Make) -> None:
    def case(world: int, time: float) -> Measurement:
        items = Work(flops=(("float32", 1),), items=world, item="images")
        return measured("ddp", "float32", SHAPE, world=world, work=items, **of([time], 2e-3))

    run = make_run([case(1, 1e-3), case(2, 1.25e-3)], claims=(Claim("O6", "ddp", "efficiency", 0.9, "V100"),))
    found = only(run)
    assert found.values == pytest.approx((0.8,))
    assert found.bounds == pytest.approx((0.8 * 0.998 / 1.002, 0.8 * 1.002 / 0.998))
    assert found.verdict == "disagrees"


@pytest.fixture
def share() -> Iterator[Metric]:
    """A metric that a tool tells, of one case or compared with another; it is gone after the test."""
    before = dict(METRICS)
    made = metrics.found(
        "waste", "waste", units.SHARE, "a hint", "lower", lambda a, _: a.get("tool.waste"), by_trace=True
    )
    over = metrics.over_variant("waste")
    metrics.add(Metric("wastes", "waste", units.RATIO, over, "a hint", "lower", relative="variant", by_trace=True))
    metrics.found("kernel", "a kernel", units.SHARE, "a hint", "lower", lambda a, _: a.get("tool.kernel.mine"))
    yield made
    METRICS.clear()
    METRICS.update(before)


def recorded(case: str, *values: float, **fields: Any) -> tuple[Attachment, ...]:
    return tuple(Attachment(case, "tool", (("waste", value),), **fields) for value in values)


@pytest.mark.usefixtures("share")
def test_one_recording_has_no_interval_and_several_have_one(measured: Build, make_run: Make) -> None:
    case = measured("tuned", "float32", SHAPE)
    claim = Claim("P1", "tuned", "waste", 0.057, "V100", says="worse")
    one = only(make_run([case], claims=(claim,), attachments=recorded(case.case.id, 0.098)))
    assert (one.values, one.bounds, one.verdict) == ((0.098,), None, "can't tell")
    several = only(make_run([case], claims=(claim,), attachments=recorded(case.case.id, 0.098, 0.099, 0.0985)))
    assert several.bounds == pytest.approx((0.0973, 0.0997), abs=1e-4)
    assert (interval_over(several), several.verdict) == ("3 recordings", "agrees")


@pytest.mark.usefixtures("share")
def test_the_calls_of_a_recording_give_an_interval(measured: Build, make_run: Make) -> None:
    case = measured("tuned", "float32", SHAPE)
    (found,) = recorded(case.case.id, 0.0985, series=(("waste", (0.098, 0.099, 0.0985)), ("losses_1", (1.0, 2.0))))
    run = make_run([case], claims=(Claim("P1", "tuned", "waste", 0.09, "V100", says="equal"),), attachments=(found,))
    assert only(run).bounds == pytest.approx((0.0973, 0.0997), abs=1e-4)
    assert (interval_over(only(run)), only(run).verdict) == ("one recording", "disagrees")


@pytest.mark.usefixtures("share")
def test_calls_of_a_kernel_and_pairs_of_two_cases(measured: Build, make_run: Make) -> None:
    cases = [measured(name, "float32", SHAPE) for name in ("eager", "tuned")]
    kernels = (KernelProfile("mine", 2.0, (("time", 0.1),)),)
    attachments = [
        Attachment(
            case.case.id, "tool", (("waste", 0.1 * factor),), (), kernels,
            (("waste", (0.1 * factor, 0.2 * factor)), ("kernel.mine", (0.19, 0.21))),
        )
        for case, factor in zip(cases, (1, 2), strict=True)
    ]  # fmt: skip
    claims = (
        Claim("P1", "tuned", "wastes", 2.0, "V100", "eager", says="equal"),
        Claim("P1", "tuned", "kernel", 0.2, "V100", says="equal"),
    )
    run = make_run(cases, claims=claims, attachments=tuple(attachments))
    ratio, kernel = comparisons(run.header.scenarios[0], run)
    assert ratio.bounds == pytest.approx((2.0, 2.0)), "each call is compared with the same call"
    assert kernel.values == pytest.approx((0.2,))
    assert interval_over(kernel) == "one recording"


# ---- A case of other sizes.


def test_a_claim_may_compare_with_a_case_of_other_sizes(measured: Build, make_run: Make) -> None:
    def case(variant: str, offset: int, time: float, dtype: str = "float32") -> Measurement:
        return measured(variant, dtype, (("N", 2**20), ("F", offset)), **of([time]))

    cases = [case("scalar", 0, 1e-6), case("scalar", 1, 1.25e-6), case("packed", 0, 0.5e-6)]
    cases += [case("scalar", 0, 1e-6, "float16"), case("scalar", 1, 2e-6, "float16")]
    claim = Claim("O10", "scalar", "speedup", 0.8, "any", where="*/float32/*-F1", base=(("F", 0),), says="worse")
    found = only(make_run(cases, claims=(claim,)))
    assert found.values == pytest.approx((0.8,))
    assert found.verdict == "agrees"
    assert notes([found])[0].text.startswith("O10 claims 0.80x or less (scalar: speed-up over F=0, any): here 0.80x")
    both = only(make_run(cases, claims=(replace(claim, where="*-F1"),)))
    assert sorted(both.values) == pytest.approx([0.5, 0.8]), "types are compared with themselves"
    other = only(make_run(cases, claims=(replace(claim, over="packed"),)))
    assert other.over == "packed at F=0"
    assert other.values == pytest.approx((0.4,))


def test_a_base_that_was_not_measured_is_named(measured: Build, make_run: Make) -> None:
    cases = [measured("scalar", "float32", (("N", 2**20), ("F", 1)))]
    claim = Claim("O10", "scalar", "speedup", 0.8, "any", base=(("F", 0),))
    assert only(make_run(cases, claims=(claim,))).reason == "F=0 wasn't measured"
    late = measured("scalar", "float32", (("N", 2**20), ("F", 0)), status="timeout")
    assert only(make_run([*cases, late], claims=(claim,))).reason == "F=0 wasn't measured"
    wrong = measured("scalar", "float32", (("N", 2**20), ("F", 1)), status="wrong")
    base = measured("scalar", "float32", (("N", 2**20), ("F", 0)))
    away = replace(claim, where="*-F1")
    assert only(make_run([wrong, base], claims=(away,))).reason == "'scalar' ended as wrong"


def test_intervals_of_several_cases_are_shown_from_the_lowest_to_the_highest(measured: Build, make_run: Make) -> None:
    shapes = [(("N", 2**k),) for k in (20, 21)]
    cases = [measured("a", "float32", shape, 0.5) for shape in shapes]
    cases += [measured("b", "float32", shape, share) for shape, share in zip(shapes, (0.6, 0.7), strict=True)]
    found = only(make_run(cases, claims=(Claim("O20", "b", "speedup", None, "V100", "a"),)))
    assert cell(interval(found)) == "1.20x to 1.40x"


def test_what_words_mean_stands_on_a_page_once(measured: Build, make_run: Make) -> None:
    claim = Claim("R1", "tuned", "speedup", 1.5, "V100", "eager")
    scenarios = [
        [measured(name, "float32", SHAPE, op=op, **of([time])) for name, time in (("eager", 2e-6), ("tuned", 1e-6))]
        for op in ("prelu", "copy")
    ]
    run = make_run(*scenarios, claims=(claim,))
    first, second = run.header.scenarios
    both = replace(run, header=replace(run.header, scenarios=(first, replace(second, claims=(claim,)))))
    text = render(build.page(both))
    assert text.count("### Claims") == 2
    assert text.count("the interval holds the noise within that process alone") == 1
