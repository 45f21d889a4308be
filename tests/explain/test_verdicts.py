"""Each fault gets the verdict that is right for it, and kernels without one get none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known, all_rules, explain, verdict
from harness.model import Traffic
from tests.one_test import one_test

# fmt: off
FAULTS = [
    "stride_32", "stride_2", "eight_a_thread", "divisions", "full_pipe", "local_array", "registers", "small_blocks",
    "narrow", "one_block", "tail", "uneven", "conflicts", "misaligned", "misaligned_floats", "unfused",
    "two_passes", "barriers", "many_launches", "stride_2_or_twice",
    "two_passes_no_stores", "two_passes_wide", "two_passes_narrow_stores", "two_passes_tail", "two_passes_conflicts",
    "reads_behind_writes", "product", "dependent", "shallow_pipeline", "lsu_pipe", "atomics", "many_barriers",
    "branches", "divergent", "doubles",
]
ASIDES = ["short", "host", "host_at_the_ceiling"]
# fmt: on
HEALTHY = [
    "tuned",
    "persistent",
    "bias_in_l1",
    "resident",
    "without_counters",
    "tma_sum",
    "tma_copy",
    "tma_and_scattered",
    "persistent_by_the_datasheet",
    "packs_of_32_bytes",
    "in_the_l2",
    "few_warps_in_the_l2",
]
ALONE = [
    "two_passes_no_stores",
    "two_passes_wide",
    "two_passes_narrow_stores",
    "two_passes_tail",
    "two_passes_conflicts",
    "reads_behind_writes",
    "product",
    "dependent",
    "lsu_pipe",
]


def test_the_lists_name_every_kernel_and_every_rule_has_one(right, healthy, asides):
    assert set(right) == set(FAULTS)
    assert set(asides) == set(ASIDES)
    assert set(healthy) == set(HEALTHY)
    assert set(right.values()) | set(asides.values()) == set(all_rules())


@one_test("name", FAULTS)
def test_the_first_verdict_is_the_fault(name: str, faulty: Callable[[str], Known], right: dict[str, str]) -> None:
    known = faulty(name)
    reasons = explain(known)
    assert [reason.rule for reason in reasons][:1] == [right[name]]
    assert verdict(known, reasons) == reasons[0].verdict
    for reason in reasons:
        assert reason.sums
        assert reason.remedy
        assert reason.verdict.endswith(".")
        assert reason.saves is None or 0 < reason.saves <= known.time


@one_test("name", ALONE)
def test_the_fault_is_all_that_is_told(name: str, faulty: Callable[[str], Known], right: dict[str, str]) -> None:
    assert [reason.rule for reason in explain(faulty(name))] == [right[name]]


@pytest.mark.parametrize("name", ASIDES)
def test_an_aside_is_told_and_is_no_verdict(name: str, faulty: Callable[[str], Known], asides: dict[str, str]) -> None:
    known = faulty(name)
    reasons = explain(known)
    assert [(reason.rule, reason.aside, reason.saves) for reason in reasons] == [(asides[name], True, None)]
    start = "At the ceiling: 98" if known.near_ceiling else "Not known: "
    assert verdict(known, reasons).startswith(start)


def test_an_aside_stands_behind_causes(uncounted):
    # Twice the reads, in a loop that takes twice as long: what the device does is the verdict.
    known = uncounted(traffic=Traffic(2 * 2**29, 2**29), call_time=4 * 2**30 / 4e12)
    reasons = explain(known)
    assert [reason.rule for reason in reasons] == ["bytes", "host"]
    assert verdict(known, reasons).startswith("Bytes beyond need")


@one_test("name", HEALTHY)
def test_a_healthy_kernel_gets_no_verdict(name: str, healthy: dict[str, Callable[[], Known]]) -> None:
    assert explain(healthy[name]()) == ()


def test_no_remedy_beats_the_ceiling(faulty):
    for name in FAULTS:
        known = faulty(name)
        assert all((reason.saves or 0.0) <= known.time - known.best + 1e-12 for reason in explain(known))


def test_an_effect_stands_behind_its_cause(faulty):
    assert [reason.rule for reason in explain(faulty("stride_32"))][:2] == ["coalescing", "bytes"]
    assert [reason.rule for reason in explain(faulty("registers"))][:2] == ["occupancy", "in_flight"]
    assert [reason.rule for reason in explain(faulty("local_array"))][:2] == ["local_memory", "in_flight"]
    assert [reason.rule for reason in explain(faulty("unfused"))] == ["second_kernel", "bytes"]


def test_what_is_said_where_no_rule_finds_anything(uncounted, copying, healthy):
    known = healthy["tuned"]()
    assert verdict(known, ()).startswith("At the ceiling: 98.0% of what this machine can do.")
    near = verdict(copying(time=2**30 / 4e12 / 0.96), ())
    assert near == "Near the ceiling: 96.0% of what this machine can do. No more than 11.18 us are left to gain."
    above = verdict(copying(time=2**30 / 4e12 / 1.07), ())
    assert above.startswith("Above the ceiling: 107.0% of what this machine can do. The time or the ceiling is wrong")
    known = copying(time=2**30 / 4e12 / 1.07)
    assert "The cache is hot" in verdict(replace(known, case=replace(known.case, cache="hot")), ())
    cached = verdict(copying(time=2**30 / 4e12 / 1.07, read_bytes=1e6, written_bytes=1e6), ())
    assert cached.endswith(
        "The L2 has what the ceiling takes from memory: 2.000 MB of 1.074 GB needed come through memory."
    )
    # Twice the ceiling of 268.4 us.
    assert verdict(uncounted(), ()).startswith("Not known: 268.4 us above the ceiling. What is known without counters")
    assert verdict(copying(), ()).endswith(
        "no rule finds a cause in what 'ncu' told. Its warps spend most of their time in 'stall_long_scoreboard': 80%."
    )
    assert "no ceiling" in verdict(uncounted(limits=None), ())


def test_a_small_saving_is_not_told(copying):
    # 3.5% more bytes than needed, once at half of the ceiling, once 2% above it.
    assert [r.rule for r in explain(copying(read_bytes=2**29 * 1.07, stall_long_scoreboard=0.2))] == ["bytes"]
    near = copying(time=2**30 / 4e12 * 1.02, read_bytes=2**29 * 1.07)
    assert explain(near) == ()


OF_A_LAUNCH = ("bytes", "requests", "sectors", "wavefronts", "conflicts", "instructions", "grid", "time")
"""What counts of a launch are called in the end."""
ALIKE = ("coalescing", "bytes", "instructions", "conflicts", "partial_sectors", "local_memory", "in_flight", "waits")
"""The rules to which it is one whether a kernel does its work in one launch, or in four launches of a quarter each."""


@one_test("name", [name for name in FAULTS if name not in ("unfused", "many_launches")])
def test_a_fault_in_four_launches_is_the_fault_of_one(name: str, faulty: Callable[[str], Known]) -> None:
    known = faulty(name)
    (kernel,) = known.kernels
    values = {
        each: value / 4 if each.endswith(OF_A_LAUNCH) and each not in ("shared_bytes", "local_bytes") else value
        for each, value in kernel.profile.values
    }
    profile = replace(kernel.profile, launches=4.0, values=tuple(values.items()))
    parted = replace(known, kernels=(replace(kernel, profile=profile),))
    for rule in ALIKE:
        once, again = ([*all_rules()[rule].judge(one)] for one in (known, parted))
        assert [replace(reason, saves=None) for reason in once] == [replace(reason, saves=None) for reason in again]
        assert [reason.saves for reason in once] == pytest.approx([reason.saves for reason in again])
