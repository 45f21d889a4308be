"""Each fault gets the verdict that is right for it, and kernels without one get none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.explain import Known, all_rules, explain, verdict

# fmt: off
FAULTS = [
    "stride_32", "stride_2", "eight_a_thread", "divisions", "full_pipe", "local_array", "registers", "small_blocks",
    "narrow", "one_block", "tail", "uneven", "conflicts", "misaligned", "misaligned_floats", "unfused",
    "two_passes", "barriers", "many_launches", "short", "host",
]
# fmt: on
HEALTHY = ["tuned", "persistent", "bias_in_l1", "resident", "without_counters"]


def test_the_lists_name_every_kernel_and_every_rule_has_one(right, healthy):
    assert set(right) == set(FAULTS)
    assert set(healthy) == set(HEALTHY)
    assert set(right.values()) == set(all_rules())


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_verdict_is_the_fault(name: str, faulty: Callable[[str], Known], right: dict[str, str]) -> None:
    known = faulty(name)
    reasons = explain(known)
    assert [reason.rule for reason in reasons][:1] == [right[name]]
    assert verdict(known, reasons) == reasons[0].verdict
    for reason in reasons:
        assert reason.sums
        assert reason.remedy
        assert reason.verdict.endswith(".")
        assert reason.saves is None or 0 < reason.saves <= max(known.time, known.subject.call_time or 0.0)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_kernel_gets_no_verdict(name: str, healthy: dict[str, Callable[[], Known]]) -> None:
    assert explain(healthy[name]()) == ()


def test_no_remedy_beats_the_ceiling(faulty):
    for name in set(FAULTS) - {"host", "short"}:
        known = faulty(name)
        assert all(reason.saves <= known.time - known.floor + 1e-12 for reason in explain(known))


def test_an_effect_stands_behind_its_cause(faulty):
    assert [reason.rule for reason in explain(faulty("stride_32"))][:2] == ["coalescing", "bytes"]
    assert [reason.rule for reason in explain(faulty("registers"))][:2] == ["occupancy", "in_flight"]
    assert [reason.rule for reason in explain(faulty("local_array"))][:2] == ["local_memory", "in_flight"]
    assert [reason.rule for reason in explain(faulty("unfused"))] == ["second_kernel", "bytes"]


def test_what_is_said_where_no_rule_finds_anything(uncounted, copying, healthy):
    known = healthy["tuned"]()
    assert verdict(known, ()).startswith("At the ceiling: 98.0% of what this machine can do.")
    # Twice the ceiling of 268.4 us.
    assert verdict(uncounted(), ()).startswith("Not known: 268.4 us above the ceiling. What is known without counters")
    assert verdict(copying(), ()).endswith("no rule finds a cause in what 'ncu' told.")
    assert "no ceiling" in verdict(uncounted(limits=None), ())


def test_a_small_saving_is_not_told(copying):
    # 3.5% more bytes than needed, once at half of the ceiling, once 2% above it.
    assert [r.rule for r in explain(copying(read_bytes=2**29 * 1.07))] == ["bytes"]
    near = copying(time=2**30 / 4e12 * 1.02, read_bytes=2**29 * 1.07)
    assert explain(near) == ()
