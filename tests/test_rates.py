"""How figures follow from times, work and counters; and what isn't a figure, since a part of it isn't known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import rates
from harness.model import Bound, Case, KernelFacts, Limits, Measurement, Traffic, Work
from harness.subject import Subject, interval
from tests.one_test import one_test

BASE = Subject(4.0, Work(600, 400, items=8), traffic=Traffic(150, 50), facts={"kept": 8.0}, interval=(3.0, 5.0))
ONE = Subject(2.0, BASE.work, traffic=Traffic(60, 40), facts={"kept": 2.0}, interval=(1.0, 2.5), over=BASE)


def test_a_fact_over_the_same_fact_of_another_variant() -> None:
    ratio = rates.over_variant("kept")
    assert ratio(ONE) == 0.25
    for unknown in (
        replace(ONE, over=None),
        replace(ONE, time=None),
        replace(ONE, facts={}),
        replace(ONE, over=replace(BASE, facts={})),
        replace(ONE, over=replace(BASE, facts={"kept": 0.0})),
    ):
        assert ratio(unknown) is None


def test_bytes_over_the_bytes_of_another_variant() -> None:
    assert rates.traffic(ONE) == 0.5
    for unknown in (
        replace(ONE, over=None),
        replace(ONE, time=None),
        replace(ONE, traffic=None),
        replace(ONE, over=replace(BASE, traffic=None)),
        replace(ONE, over=replace(BASE, traffic=Traffic(0, 0))),
    ):
        assert rates.traffic(unknown) is None


def test_scaling_efficiency_and_its_bounds() -> None:
    """Two devices do 16 items in 5 s where one does 8 in 4 s: 80%. Both times at the ends that are worst, or best."""
    alone = BASE
    two = replace(ONE, time=5.0, work=Work(items=16), interval=(4.0, 10.0), world=2, alone=alone)
    assert rates.ideal_items(two) == 4.0
    assert rates.efficiency(two) == pytest.approx(0.8)
    low, high = rates.efficiency_bound(0), rates.efficiency_bound(1)
    assert low(two) == pytest.approx(0.8 * 5 / 10 * 3 / 4)
    assert high(two) == pytest.approx(0.8 * 5 / 4 * 5 / 4)
    for unknown in (
        replace(two, interval=None),
        replace(two, time=None),
        replace(two, alone=None),
        replace(two, alone=replace(alone, interval=None)),
        replace(two, alone=replace(alone, time=None)),
        replace(two, world=1),
    ):
        assert low(unknown) is high(unknown) is None


def test_the_most_that_a_kernel_has() -> None:
    registers = rates.kernels_most(lambda kernel: kernel.registers)
    assert registers(replace(ONE, kernels=tuple(KernelFacts("k", count, 0, 0) for count in (16, 64, 32)))) == 64
    assert registers(ONE) is None


def test_sums_of_counters_need_all_of_them() -> None:
    total = rates.sum_of_counters("load_requests", "store_requests")
    assert total({"ncu.load_requests": 3.0, "ncu.store_requests": 4.0, "ncu.other": 9.0}, None) == 7.0
    assert total({"ncu.load_requests": 3.0, "store_requests": 4.0}, None) is None
    assert total({}, 1.0) is None


def test_the_fullest_pipe_or_the_schedulers() -> None:
    counted = {"ncu.issue_active": 0.3, "ncu.pipe_alu": 0.5, "ncu.pipe_fma": 0.2, "ncu.dram_active": 0.9}
    assert rates.compute_busy(counted, None) == 0.5
    assert rates.compute_busy({**counted, "ncu.issue_active": 0.7}, None) == 0.7
    assert rates.compute_busy({"ncu.pipe_alu": 0.5}, None) is None


@one_test(
    ("bound", "by_compute"),
    [(None, False), (Bound("memory", 1.0), False), (Bound("link", 1.0), False), (Bound("float16", 1.0), True)],
)
def test_what_binds_a_subject(bound: Bound | None, by_compute: bool) -> None:
    one = replace(ONE, bound=bound)
    assert one.bound_by_compute == by_compute
    assert one.best == (1.0 if bound else None)
    assert (Subject(1.0).state, replace(one, settled=True).state, Subject(1.0).world) == ("burst", "settled", 1)
    assert not replace(one, limits=Limits()).beyond_memory


def test_the_interval_of_two_processes_holds_both_medians_however_few_their_samples() -> None:
    case = Case("op", "tuned", "float16", (("N", 8),))
    one, other, failed = (
        Measurement(case, status, samples)
        for status, samples in (("ok", (1.0, 2.0, 3.0)), ("ok", (4.0,)), ("wrong", ()))
    )
    assert interval([one, other]) == interval([one, failed, other]) == (2.0, 4.0)
    assert interval([one]) is interval([one, failed]) is None
    assert interval([replace(one, samples=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)), other]) == (1.0, 6.0)
