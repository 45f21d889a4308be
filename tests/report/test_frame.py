from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.model import KernelFacts, Measurement, Run, Work
from harness.report.frame import by_scenario, frame

SHAPE = (("N", 64), ("C", 128), ("H", 56))


def test_one_row_a_case_with_every_quantity(run: Run) -> None:
    row = frame(run).set_index("case").loc["prelu/tuned/float32/N64-C128-H56"]
    bytes_moved = 2 * 4 * 64 * 128 * 56
    time = bytes_moved / 4e12
    assert (row["N"], row["C"], row["H"]) == (64, 128, 56)
    assert (row["op"], row["variant"], row["dtype"], row["shape"]) == ("prelu", "tuned", "float32", "N64-C128-H56")
    assert (row["status"], row["timer"], row["processes"], row["samples"]) == ("ok", "graph", 1, 11)
    assert row["time"] == pytest.approx(time, rel=1e-12)
    assert (row["low"], row["high"]) == pytest.approx((0.9996 * time, 1.0004 * time), rel=1e-12)
    assert row["noise"] == pytest.approx(8e-4, rel=1e-9)
    assert row["call_time"] == pytest.approx(1.01 * time, rel=1e-12)
    assert row["read_bytes"] + row["written_bytes"] == row["moved_bytes"] == bytes_moved
    assert row["bandwidth"] == pytest.approx(4e12, rel=1e-12)
    assert row["ceiling_bandwidth"] == pytest.approx(4e12, rel=1e-12)
    assert (row["of_peak"], row["of_ceiling"], row["speedup"]) == pytest.approx((1, 1, 2), rel=1e-12)
    assert (row["registers"], row["local_bytes"]) == (40, 8)


def test_a_failed_case_has_a_row_without_numbers(run: Run) -> None:
    row = frame(run).set_index("case").loc["prelu/a|b/float16/N64-C128-H56"]
    assert row["status"] == "crashed"
    assert row["error"].startswith("illegal address")
    assert all(math.isnan(row[name]) for name in ("time", "noise", "bandwidth", "of_ceiling", "speedup"))


def test_groups_stay_together_in_the_scenarios_order(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [(variant, dtype) for variant in ("eager", "tuned") for dtype in ("float32", "float16")]
    table = frame(make_run([measured(variant, dtype, SHAPE) for variant, dtype in cases]))
    assert list(zip(table["dtype"], table["variant"], strict=True)) == [
        ("float32", "eager"),
        ("float32", "tuned"),
        ("float16", "eager"),
        ("float16", "tuned"),
    ]


def test_a_baseline_that_failed_or_was_not_run_gives_no_speedup(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    failed = [measured("eager", "float32", SHAPE, status="wrong"), measured("tuned", "float32", SHAPE)]
    assert frame(make_run(failed))["speedup"].isna().all()
    assert frame(make_run(failed[1:]))["speedup"].isna().all()


def test_a_case_of_two_scenarios_is_held_against_the_baseline_of_each(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [measured("eager", "float32", SHAPE, 0.25), measured("tuned", "float32", SHAPE, 1.0)]
    run = make_run(cases, baseline="tuned", name="first")
    twice = make_run(cases, cases, baseline="tuned", name="first")
    assert frame(run)["speedup"].to_list() == pytest.approx([0.25, 1.0], rel=1e-12)
    assert frame(twice)["speedup"].to_list() == pytest.approx([0.25, 1.0, 1.0, 4.0], rel=1e-12)
    assert [(scenario.name, len(lines)) for scenario, lines in by_scenario(twice)] == [
        ("first", 2),
        ("prelu", 2),
    ]


def test_processes_are_told_apart_from_samples(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    runs = [measured("eager", "float32", SHAPE, share, process=i) for i, share in enumerate((1.0, 0.5, 0.8))]
    (row,) = frame(make_run(runs)).to_dict("records")
    fastest = 2 * 4 * 64 * 128 * 56 / 4e12
    assert (row["processes"], row["samples"]) == (3, 33)
    assert row["time"] == pytest.approx(fastest / 0.8, rel=1e-12)
    assert row["process_range"] == pytest.approx((2 - 1) / 1.25, rel=1e-12)
    assert (row["low"], row["high"]) == pytest.approx((0.9996 * fastest, 2 * 1.0004 * fastest), rel=1e-12)


def test_rates_of_what_users_count(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> None:
    step = Work(0, 0, flops=(("float16", 3 * 10**12),), items=256, item="images")
    samples = tuple([0.5] * 7)
    (row,) = frame(make_run([measured("eager", "float32", SHAPE, work=step, samples=samples)])).to_dict("records")
    assert (row["items"], row["flops"], row["item"]) == (512.0, 6e12, "images")
    assert math.isnan(row["bandwidth"])
    assert math.isnan(row["of_ceiling"])


def test_a_symbol_named_like_a_quantity_hides_neither(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    (row,) = frame(make_run([measured("eager", "float32", (("samples", 7), ("N", 3)))])).to_dict("records")
    assert (row["samples"], row["samples_symbol"], row["N"]) == (11, 7, 3)


def test_without_ceilings_only_what_needs_them_is_missing(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    run = make_run([measured("eager", "float32", SHAPE, kernels=(KernelFacts("k", 16, 0, 0),))])
    (row,) = frame(replace(run, header=replace(run.header, limits=None))).to_dict("records")
    assert math.isnan(row["of_peak"])
    assert math.isnan(row["of_ceiling"])
    assert row["bandwidth"] == pytest.approx(2e12, rel=1e-12)
