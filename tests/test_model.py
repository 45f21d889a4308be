from __future__ import annotations

import math

import pytest

from harness.model import Case, Ceilings, Machine, Measurement, Result, Run, StreamPoint, Work, by_group
from harness.model import Header as RunHeader

CASE = Case("prelu", "tuned", "float16", (("N", 96), ("C", 64), ("H", 112), ("W", 112)))
WORK = Work(read=600, written=400)


def timed(*samples: float, process: int = 0, case: Case = CASE) -> Measurement:
    return Measurement(case, "ok", samples, work=WORK, traffic=Work(1600, 400), process=process)


def test_ids_are_readable_and_tell_hot_from_cold() -> None:
    hot = Case("copy", "eager", "float32", (("N", 8),), cache="hot")
    assert CASE.id == "prelu/tuned/float16/N96-C64-H112-W112"
    assert CASE.group == "prelu/float16/N96-C64-H112-W112"
    assert (hot.id, hot.group) == ("copy/eager/float32/N8/hot", "copy/float32/N8/hot")
    assert Case("sum", "eager", "float32", ()).id == "sum/eager/float32/scalar"
    assert CASE.symbols == {"N": 96, "C": 64, "H": 112, "W": 112}


def test_time_is_the_median_of_the_processes_medians() -> None:
    result = Result(CASE, (timed(1.0, 2.0, 9.0), timed(4.0, 5.0, 6.0, process=1), timed(3.0, process=2)))
    assert result.medians == (2.0, 5.0, 3.0)
    assert result.time == 3.0
    assert result.bandwidth == 1000 / 3.0
    assert result.moved_bandwidth == 2000 / 3.0


def test_one_failed_process_fails_the_case() -> None:
    result = Result(CASE, (timed(1.0), Measurement(CASE, "crashed", error="gone", process=1)))
    assert (result.status, result.time, result.bandwidth, result.error) == ("crashed", None, None, "gone")


def test_a_wrong_result_has_no_time_even_with_samples() -> None:
    assert Measurement(CASE, "wrong", (1.0, 2.0)).time is None


def test_groups_hold_the_variants_of_one_job_in_order() -> None:
    eager, other = Case("prelu", "eager", "float16", CASE.shape), Case("prelu", "eager", "float32", CASE.shape)
    results = [Result(case, (timed(1.0, case=case),)) for case in (CASE, other, eager)]
    groups = by_group(results)
    assert {name: [r.case for r in group] for name, group in groups.items()} == {
        "prelu/float16/N96-C64-H112-W112": [CASE, eager],
        "prelu/float32/N96-C64-H112-W112": [other],
    }


def stream(read: int, written: int, seconds: float, way: str = "kernel", *, is_copy: bool = False) -> StreamPoint:
    return StreamPoint(read, written, seconds, way, is_copy)


def test_the_best_way_counts_and_only_copies_make_the_peak() -> None:
    ceilings = Ceilings(
        (stream(50, 50, 4.0, "slow"), stream(50, 50, 2.0, "fast"), stream(50, 50, 2.5, "memcpy", is_copy=True))
    )
    assert [point.way for point in ceilings.best] == ["fast"]
    assert ceilings.peak == 40.0
    assert Ceilings((stream(50, 50, 1.0),)).peak is None


def test_drift_compares_each_way_with_itself() -> None:
    start = (stream(50, 50, 2.0, "a"), stream(50, 50, 1.0, "b"))
    assert Ceilings(start, end=(stream(50, 50, 2.5, "a"),)).drift == 0.25
    assert Ceilings(start, end=(stream(50, 50, 2.5, "c"),)).drift is None
    assert Ceilings(start).drift is None


def test_between_sizes_the_time_follows_a_power_law() -> None:
    # 100 times the bytes in 10 times the time: at 10 times the bytes it is the square root of that.
    ceilings = Ceilings((stream(500, 500, 1.0), stream(50_000, 50_000, 10.0)))
    assert ceilings.seconds(Work(5000, 5000)) == pytest.approx(math.sqrt(10), rel=1e-12)
    assert ceilings.seconds(Work(500, 500)) == pytest.approx(1.0, rel=1e-12)
    assert ceilings.seconds(Work(50_000, 50_000)) == pytest.approx(10.0, rel=1e-12)
    assert ceilings.seconds(Work(5_000_000, 5_000_000)) == pytest.approx(100.0, rel=1e-12)


def test_past_the_ends_more_bytes_are_never_cheaper_nor_dearer_than_in_proportion() -> None:
    falling = Ceilings((stream(500, 500, 2.0), stream(1000, 1000, 1.9)))
    assert falling.seconds(Work(2000, 2000)) == pytest.approx(2.0, rel=1e-12)
    steep = Ceilings((stream(500, 500, 1.0), stream(1000, 1000, 4.0)))
    assert steep.seconds(Work(250, 250)) == pytest.approx(0.5, rel=1e-12)


def test_the_ceiling_at_a_measured_size_is_what_was_measured() -> None:
    # Bandwidth falls with size where the smaller stream still finds data in a cache.
    ceilings = Ceilings((stream(500, 500, 1.0), stream(1000, 1000, 4.0), stream(2000, 2000, 6.0)))
    assert ceilings.seconds(Work(1000, 1000)) == pytest.approx(4.0, rel=1e-12)


def test_one_size_is_scaled_in_proportion() -> None:
    assert Ceilings((stream(100, 0, 2.0),)).seconds(Work(50, 0)) == 1.0


def test_between_mixes_the_times_of_reads_and_writes_add_up() -> None:
    ceilings = Ceilings((stream(1000, 0, 1.0), stream(0, 1000, 3.0)))
    assert ceilings.seconds(Work(750, 250)) == pytest.approx(1.5, rel=1e-12)
    assert ceilings.seconds(Work(1000, 0)) == pytest.approx(1.0, rel=1e-12)


def test_a_mix_past_those_measured_takes_the_nearest() -> None:
    ceilings = Ceilings((stream(500, 500, 1.0), stream(750, 250, 2.0)))
    assert ceilings.seconds(Work(1000, 0)) == pytest.approx(2.0, rel=1e-12)
    assert ceilings.seconds(Work(0, 1000)) == pytest.approx(1.0, rel=1e-12)


def test_no_ceiling_where_nothing_moves_or_nothing_was_measured() -> None:
    assert Ceilings((stream(1, 1, 1.0),)).seconds(Work(0, 0)) is None
    assert Ceilings(()).seconds(WORK) is None


def test_of_peak_and_of_ceiling() -> None:
    ceilings = Ceilings((stream(600, 400, 2.0), stream(500, 500, 4.0, "memcpy", is_copy=True)))
    machine = Machine("cpu", "A processor", "f00d", 1, 1)
    header = RunHeader("a", machine, (), (), "", "", "", 1, ceilings=ceilings)
    run = Run(header, (timed(8.0), timed(8.0, process=1)))
    (result,) = run.results
    assert run.of_peak(result) == 0.5
    assert run.of_ceiling(result) == pytest.approx(0.25, rel=1e-12)
