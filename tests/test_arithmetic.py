"""The types in which a variant does its operations: they decide its own ceiling, and no other variant's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import metrics
from harness.metrics import METRICS
from harness.model import ComputePoint, Result, Work
from tests.test_measure import FakeDevice, op, run
from tests.test_metrics import CASE, LIMITS, measured, subject


def test_a_variant_is_held_to_the_peaks_of_its_own_types_and_moves_no_other_variant() -> None:
    """10**6 operations take 1 us in float16; in float32 4 us, and 2.5 us if half of them are in either type."""
    limits = replace(LIMITS, compute=(*LIMITS.compute, ComputePoint("float32", 8, 8, 8, 25e10, "torch")))
    work = Work(read=200, written=200, flops=(("float16", 10**6),))
    types = {"halves": (), "single": (("float32", 10**6),), "mixed": (("float32", 500_000), ("float16", 500_000))}
    wanted = {"halves": 0.125, "single": 0.5, "mixed": 0.3125}
    results: list[Result] = []
    for name, arithmetic in types.items():
        found = measured(8e-6, case=replace(CASE, variant=name), work=work, arithmetic=arithmetic)
        results.append(Result(found.case, (found,)))
        subjects = metrics.subjects(results, limits).values()
        shares = {one.variant: METRICS["of_ceiling"].value(one) for one in subjects}
        assert shares == pytest.approx({variant: wanted[variant] for variant in shares}, rel=1e-6)
    assert {METRICS["flops"].value(one) for one in subjects} == {10**6 / 8e-6}
    assert [one.bound.limit for one in subjects] == ["float16", "float32", "float32 + float16"]
    assert all(one.beyond_memory for one in subjects)


def test_a_type_whose_peak_is_not_known_leaves_memory_alone_as_the_limit() -> None:
    found = subject(measured(work=Work(200, 200, (("float16", 10**6),)), arithmetic=(("tf32", 10**6),)))
    assert (found.bound.limit, found.beyond_memory) == ("memory", False)


def test_the_types_of_operations_are_told_where_they_are_not_those_of_the_work():
    plain, own = run(FakeDevice([2e-6])), run(FakeDevice([2e-6]), op(arithmetic="tf32"))
    assert (plain.arithmetic, own.arithmetic) == ((), (("tf32", 1024),))
    assert own.work == plain.work == plain.work_done
    assert own.work_done == Work(4096, 4096, (("tf32", 1024),))
