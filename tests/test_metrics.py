"""Each metric's computation, and that a metric added from outside is everywhere."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import metrics, report, scenario, units
from harness.errors import UsageError
from harness.metrics import METRICS, Metric, Subject, interval
from harness.model import (
    Attachment,
    Case,
    Claim,
    ComputePoint,
    Curve,
    DeviceFacts,
    Expectation,
    Header,
    KernelFacts,
    Limits,
    LinkPoint,
    Machine,
    Measurement,
    Result,
    Run,
    Scenario,
    StreamPoint,
    Traffic,
    Work,
)
from harness.report import terminal
from tests.one_test import one_test

CASE = Case("op", "tuned", "float16", (("N", 8),))
LIMITS = Limits(
    # 4 GB/s whatever the mix, a copy at 2 GB/s.
    points=(
        StreamPoint(1000, 1000, 5e-7, "kernel"),
        StreamPoint(2000, 2000, 1e-6, "kernel"),
        StreamPoint(1000, 1000, 1e-6, "memcpy", is_copy=True),
    ),
    compute=(
        ComputePoint("float16", 8, 8, 8, 1e12, "torch"),
        ComputePoint("float16", 8, 8, 8, 5e11, "torch", "settled"),
    ),
    links=(LinkPoint(2, 1000, 1e-6, "nccl"),),
)
WORK = Work(read=2000, written=2000, flops=(("float16", 10**6),), items=5, item="rows")


SEVERAL = {"efficiency", "efficiency_low", "efficiency_high", "ideal_items"}
"""Metrics that only cases on several devices have."""


def measured(time: float = 2e-6, case: Case = CASE, **fields: Any) -> Measurement:
    """Seven samples around `time`: the interval of their median goes from 0.9 to 1.1 of it."""
    samples = tuple(time * factor for factor in (0.9, 0.95, 1, 1, 1, 1.05, 1.1))
    known: dict[str, Any] = {"samples": samples, "work": WORK, "traffic": Traffic(4000, 4000), "timer": "graph"}
    return Measurement(case, "ok", **(known | fields))


def subject(*found: Measurement, limits: Limits | None = LIMITS) -> Subject:
    return Subject.of(Result(found[0].case, found), limits)


EVERYTHING = measured(
    call_samples=(3e-6,),
    kernels=(KernelFacts("a", 20, 8, 0), KernelFacts("b", 40, 0, 0)),
    facts=(("hidden", 0.5), ("kept_bytes", 100.0)),
)


VALUES: list[tuple[str, float | None]] = [
    ("time", 2e-6),
    ("low", 1.8e-6),
    ("high", 2.2e-6),
    ("call_time", 3e-6),
    ("bandwidth", 2e9),
    ("moved_bandwidth", 4e9),
    ("flops", 5e11),
    ("intensity", 250),
    ("items", 2.5e6),
    ("of_peak", 2e9 / 2e9),
    ("of_ceiling", 0.5),
    ("speedup", 1.5),
    ("traffic", 2.0),
    ("kept", 0.125),
    ("ceiling_bandwidth", 4e9),
    ("ceiling_flops", 1e12),
    ("noise", 0.2),
    ("read_bytes", 2000),
    ("written_bytes", 2000),
    ("sent_bytes", None),
    ("moved_bytes", 8000),
    ("registers", 40),
    ("local_bytes", 8),
    ("efficiency", None),
    ("efficiency_low", None),
    ("efficiency_high", None),
    ("ideal_items", None),
    ("process_range", None),
]
"""Each metric of EVERYTHING."""


@one_test(("name", "value"), VALUES)
@one_test("of", [subject, lambda found: Subject.of(found, LIMITS)], ids=["result", "measurement"])
def test_each_metric(of: Any, name: str, value: float | None) -> None:
    over = subject(measured(3e-6, traffic=Traffic(2000, 2000), facts=(("kept_bytes", 800.0),)))
    assert METRICS[name].value(of(EVERYTHING).against(over)) == (None if value is None else pytest.approx(value))


def test_every_bundled_metric_is_computed_by_a_test() -> None:
    assert {name for name, _ in VALUES} == {name for name in metrics.COMMON if not METRICS[name].reported}


@one_test("name", sorted(metrics.COMMON - {"read_bytes", "written_bytes"}))
def test_a_case_without_a_time_has_no_metric_of_it(name: str) -> None:
    failed = subject(Measurement(CASE, "wrong", work=WORK)).against(subject(measured()))
    known = {"ceiling_bandwidth": 4e9, "ceiling_flops": 1e12, "intensity": 250}
    assert METRICS[name].value(failed) == known.get(name)


def test_without_limits_only_what_needs_them_is_unknown() -> None:
    found = metrics.values(subject(EVERYTHING, limits=None).against(subject(measured())))
    unknown = {name for name, value in found.items() if value is None}
    assert unknown - SEVERAL - {"process_range", "sent_bytes", "kept"} == {
        "of_peak", "of_ceiling", "ceiling_bandwidth", "ceiling_flops",
    }  # fmt: skip
    assert {name for name, metric in METRICS.items() if metric.of_limits} == {"of_peak", "of_ceiling"}


@one_test(
    ("work", "share", "limit"),
    [
        (Work(2000, 2000), 0.5, "memory"),
        (Work(200, 200, (("float16", 10**6),)), 0.5, "float16"),
        (Work(200, 200, (("float16", 10**4),)), 0.05, "memory"),
        (Work(200, 200, sent=1500), 0.75, "link"),
        # No peak of this type was measured, so memory alone is known to bind.
        (Work(2000, 2000, (("float64", 10**9),)), 0.5, "memory"),
    ],
)
def test_of_ceiling_is_taken_from_the_limit_that_binds(work: Work, share: float, limit: str) -> None:
    found = subject(measured(work=work, case=replace(CASE, world=2)))
    assert METRICS["of_ceiling"].value(found) == pytest.approx(share, rel=1e-6)
    assert found.bound.limit == limit


def test_a_case_that_loads_the_machine_for_seconds_is_held_to_the_settled_peak() -> None:
    work = Work(flops=(("float16", 10**6),))
    shares = [METRICS["of_ceiling"].value(subject(measured(work=work, timer=timer))) for timer in ("graph", "steady")]
    assert shares == pytest.approx([0.5, 1.0])


@one_test(
    ("work", "beyond"),
    [
        (Work(8, 8), False),
        (Work(8, 8, (("float16", 9),)), True),
        (Work(8, 8, (("float16", 9), ("float64", 9))), False),
        (Work(8, 8, sent=9), False),
    ],
)
def test_operations_are_shown_where_their_peak_was_measured(work: Work, beyond: bool) -> None:
    found = subject(measured(work=work))
    assert (found.beyond_memory, METRICS["flops"].shown(found)) == (beyond, beyond)
    assert not subject(measured(work=work), limits=None).beyond_memory


def test_scaling_efficiency_is_over_the_same_case_on_one_device() -> None:
    alone, other = measured(1e-6), measured(1e-6, case=replace(CASE, variant="other"))
    pair = measured(2.5e-6, case=replace(CASE, world=2), work=replace(WORK, items=10))
    results = [Result(m.case, (m,)) for m in (alone, other, pair)]
    found = metrics.subjects(results, LIMITS)
    # 10 rows in 2.5 us on two devices, 5 rows in 1 us on one.
    assert METRICS["efficiency"].value(found[pair.case.id]) == pytest.approx(4e6 / (2 * 5e6))
    assert METRICS["efficiency"].value(found[alone.case.id]) is None
    assert METRICS["efficiency"].value(metrics.subjects(results[1:], LIMITS)[pair.case.id]) is None


def test_subjects_are_those_of_each_result() -> None:
    results = [Result(m.case, (m,)) for m in (measured(), measured(case=replace(CASE, variant="b"), work=None))]
    assert metrics.subjects(results, LIMITS) == {r.case.id: Subject.of(r, LIMITS) for r in results}
    assert metrics.subjects(results, None) == {r.case.id: Subject.of(r, None) for r in results}


def test_processes_are_as_uncertain_as_their_medians_and_each_of_them() -> None:
    found = subject(measured(1e-6), measured(2e-6, process=1), measured(4e-6, process=2))
    assert found.interval == pytest.approx((0.9e-6, 4.4e-6))
    assert METRICS["process_range"].value(found) == pytest.approx(1.5)


def test_medians_of_processes_with_few_samples_still_bound() -> None:
    few = [Measurement(CASE, "ok", (time,), process=i) for i, time in enumerate((3.0, 1.0, 2.0))]
    assert interval(few) == (1.0, 3.0)
    assert interval(few[:1]) is None
    assert interval([Measurement(CASE, "timeout")]) is None


def test_local_bytes_are_shown_where_there_are_some() -> None:
    assert METRICS["local_bytes"].shown(subject(EVERYTHING))
    assert not METRICS["local_bytes"].shown(subject(measured(kernels=(KernelFacts("a", 20, 0, 0),))))


def test_moved_bandwidth_is_shown_where_the_variant_moves_more() -> None:
    assert METRICS["moved_bandwidth"].shown(subject(measured()))
    assert not METRICS["moved_bandwidth"].shown(subject(measured(traffic=Traffic(2000, 2000))))


def test_bytes_that_are_sent_are_told_where_there_are_some() -> None:
    sent = METRICS["sent_bytes"].value
    assert sent(subject(measured(work=Work(200, 200, sent=1500)))) == 1500
    assert sent(subject(measured())) is sent(subject(measured(work=None))) is None


# ---- A metric from outside.


@pytest.fixture
def own() -> Iterator[None]:
    """What is added to the list is gone after the test."""
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)


@pytest.fixture
def joules(own: None) -> Metric:
    """A metric that nobody knows: work a joule, at 100 W."""
    return metrics.add(
        Metric(
            "work_a_joule",
            "work a joule",
            units.RATIO,
            lambda s: 1e-6 / s.time if s.time else None,
            "bytes that a joule moves",
            "higher",
            head="a joule",
            keep=8,
            figure=99,
            sweep=99,
        )
    )


def a_run(*found: Measurement, **fields: Any) -> Run:
    ids = tuple(m.case.id for m in found)
    claim = Claim("R1", "tuned", "work_a_joule", 0.7, "V100")
    known: dict[str, Any] = {"claims": (claim,), "baseline": "tuned"}
    made = Scenario("mine", "", "op", ids, **(known | fields))
    machine = Machine("cuda", "f00d", (DeviceFacts("A GPU", 1, 1),))
    header = Header("a", machine, (made,), ("harness",), "now", "", len(found), limits=LIMITS)
    return Run(header, found)


def drawn(run: Run, width: int = 140) -> str:
    file = io.StringIO()
    terminal.render(run, Console(file=file, width=width))
    return file.getvalue()


@pytest.mark.slow  # test_metrics_declared.py has metrics of others
def test_a_metric_from_outside_is_in_every_report(joules: Metric, tmp_path: Path) -> None:
    run = a_run(measured())
    report.write(run, tmp_path)
    page = (tmp_path / "report.md").read_text()
    (head, cells) = [line for line in page.splitlines() if re.match(r"\| (shape|N8) ", line)]
    (row,) = csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text()))
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (" a joule " in head, " 0.50x " in cells) == (True, True)
    assert "- **a joule**: bytes that a joule moves." in page
    assert "| R1  | tuned: work a joule |   0.70x | or more | V100 | 0.50x |" in page
    assert (float(row["work_a_joule"]), result["work_a_joule"]) == (0.5, 0.5)
    assert "![op float16: work a joule by variant and shape](plots/mine-float16.svg)" in page
    svg = (tmp_path / "plots" / "mine-float16.svg").read_text()
    assert ">work a joule (x)<" in svg
    text = drawn(run)
    assert "joule" in text
    assert "R1 claims 0.70x or more (tuned: work a joule, V100): here 0.50x" in text


def test_a_metric_from_outside_is_what_a_sweep_shows(joules: Metric) -> None:
    shapes = [replace(CASE, shape=(("N", n),)) for n in (1, 2)]
    text = drawn(a_run(*(measured(case=case) for case in shapes), curve=Curve("N", "rows"), claims=()))
    assert "float16: work a joule" in text


def test_a_metric_from_outside_may_be_a_claim_and_a_floor_of_a_scenario(joules: Metric) -> None:
    schema = json.dumps(scenario.json_schema())
    definitions = scenario.json_schema()["$defs"]
    assert "work_a_joule" in definitions["ClaimKeys"]["properties"]["metric"]["enum"]
    assert schema.count('"work_a_joule"') >= 2


def test_a_metric_from_outside_is_a_floor_of_the_gate(joules: Metric) -> None:
    from harness.gate.evidence import Evidence
    from harness.gate.records import CaseEvidence, Margin
    from harness.gate.rules import floor

    expected = Scenario("mine", "", "op", (CASE.id,), expect=(Expectation("tuned", "work_a_joule", 0.7),))
    found = CaseEvidence(CASE, "mine", (), (measured(),), (), Margin(0.01))
    (finding,) = floor.judge(Evidence("base", (expected,), (found,), LIMITS))
    assert (finding.severity, "work a joule" in finding.message, "0.50x" in finding.message) == ("failure", True, True)


def test_a_metric_of_some_ops_is_told_where_a_case_has_it(own: None) -> None:
    name = "work_an_item"
    metrics.add(Metric(name, "", units.PLAIN, lambda s: s.work.moved / s.work.items if s.work.items else None))
    assert metrics.values(subject(measured()))[name] == 800
    assert name not in metrics.values(subject(measured(work=replace(WORK, items=0))))


def test_what_a_tool_found_is_a_metric(own: None, tmp_path: Path) -> None:
    metrics.found("busy", "busy", units.SHARE, "a share", "higher", lambda found, time: found.get("mine.seconds") / time
                  if "mine.seconds" in found else None, by_trace=True)  # fmt: skip
    claims = (Claim("R1", "tuned", "busy", 0.9, "V100"),)
    run = replace(a_run(measured(), claims=claims), attachments=(Attachment(CASE.id, "mine", (("seconds", 1e-6),)),))
    text = drawn(run)
    assert re.search(r"busy.*\n.*50\.0%", text)
    assert "R1 claims 90.0% or more (tuned: busy, V100): here 50.0% by a trace; can't tell" in text
    assert metrics.told({}, 1.0) == {}


# ---- What a variant reports of itself.


def test_a_fact_is_a_column_where_some_case_has_it(own: None) -> None:
    metrics.fact("hidden", "hidden", units.SHARE, "share of the sending that was hidden", "higher")
    with_it = measured(facts=(("hidden", 0.25),))
    text = drawn(a_run(with_it, measured(case=replace(CASE, variant="other")), claims=()))
    head, *rows = [line for line in text.splitlines() if re.match(r"(variant|tuned|other)\b", line.strip())]
    assert "hidden" in head
    assert [("25.0%" in row) for row in rows] == [True, False]
    assert "hidden" not in drawn(a_run(measured(), claims=()))


def test_a_fact_whose_op_is_not_loaded_is_shown_plainly() -> None:
    run = a_run(measured(facts=(("depth", 3.5),)), claims=(Claim("R1", "tuned", "depth", 4.0, "V100"),))
    assert "depth" not in METRICS
    text = drawn(run)
    assert re.search(r"depth.*\n.*3\.5", text)
    assert "R1 claims 4.000 or more (tuned: depth, V100): here 3.500; can't tell" in text


def test_several_ops_may_report_the_same_fact_but_not_two_under_one_name(own: None) -> None:
    first = metrics.fact("hidden", "hidden", units.SHARE, "a share")
    assert metrics.fact("hidden", "hidden", units.SHARE, "a share") is first
    with pytest.raises(
        UsageError, match="there is a metric named 'hidden' already, 'hidden', and its title, head differ"
    ):
        metrics.fact("hidden", "concealed", units.SHARE, "a share")
    with pytest.raises(UsageError, match="'speed-up'"):
        metrics.fact("speedup", "hidden", units.SHARE, "a share")


def test_processes_report_the_median_of_their_facts(own: None) -> None:
    metric = metrics.fact("depth", "depth", units.COUNT, "how deep")
    found = subject(*(measured(facts=(("depth", value),), process=i) for i, value in enumerate((1.0, 5.0, 3.0))))
    assert metric.value(found) == 3.0


def test_floors_are_of_what_is_better_higher_and_claims_of_what_has_a_better_way() -> None:
    assert set(metrics.floors()) == {name for name, metric in METRICS.items() if metric.better == "higher"}
    assert {"time", "call_time", "traffic"} <= set(metrics.claimed()) - set(metrics.floors())
    assert "noise" not in metrics.claimed()


def test_every_column_says_how_to_read_it() -> None:
    assert [name for name, metric in METRICS.items() if metric.head and not metric.hint] == []
    assert [name for name, metric in METRICS.items() if metric.limit and metric.limit not in METRICS] == []


def scaled(variant: str, time: float, world: int = 2, **fields: Any) -> Measurement:
    work = replace(WORK, items=5 * world, sent=1000)
    return measured(time, Case("op", variant, "float16", (("N", 8),), world=world), work=work, **fields)


def test_what_several_devices_do_is_compared_with_one() -> None:
    every = (scaled("ddp", 2e-6, 1), scaled("ddp", 2.5e-6))
    found = metrics.subjects([Result(m.case, (m,)) for m in every], LIMITS)
    alone, ddp = (metrics.values(found[m.case.id]) for m in every)
    assert (alone["ideal_items"], alone["efficiency"]) == (2.5e6, None)
    assert ddp["ideal_items"] == 5e6
    assert ddp["efficiency"] == pytest.approx(0.8)
    assert ddp["efficiency_low"] == pytest.approx(0.8 / 1.1 * 0.9)
    assert ddp["efficiency_high"] == pytest.approx(0.8 / 0.9 * 1.1)
