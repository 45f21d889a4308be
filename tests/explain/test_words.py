"""What reasons say: the sums of kernels that the rules once judged wrongly, their remedies, and what is only likely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known, Reason, Seen, all_rules, explain, verdict
from harness.model import KernelFacts, KernelProfile, Traffic, Work
from tests.one_test import one_test

D = 2**29
WARPS = 2**20
BEST = 2 * D / 4e12
IDLE = {"dram_active": 0.5, "issue_active": 0.1, "stall_long_scoreboard": 0.2}


def judged(rule: str, known: Known) -> list[Reason]:
    return list(all_rules()[rule].judge(known))


def only(rule: str, known: Known) -> tuple[Reason, str]:
    """The only reason of a rule, and all that it says."""
    (reason,) = judged(rule, known)
    return reason, "\n".join((reason.verdict, *reason.sums))


def test_bytes_that_shared_memory_holds_are_under_way(faulty):
    reason, text = only("in_flight", faulty("shallow_pipeline"))
    # One block of four warps, and its 8 KB; 2 TB/s x 1 us / 132 are needed.
    assert "= 4.0 warps / 4 of a block x 8.192 kB (at most what shared memory holds) = 8.192 kB" in text
    assert reason.verdict.startswith("Too few bytes in flight: 8.192 kB a multiprocessor at most, 15.15 kB are needed")
    reason, _ = only("occupancy", faulty("shallow_pipeline"))
    assert reason.remedy.startswith("copy more bytes ahead of the work")
    assert "stages" not in reason.remedy


def test_waits_though_enough_is_under_way_are_named_so(faulty, copying):
    reason, text = only("in_flight", faulty("dependent"))
    assert "Waits for memory, although enough loads are allowed for, while memory is 50% busy." in text
    assert "Too few" not in text
    assert "can't start at once" in reason.remedy
    # 8 loads of 512 B in a row: 12.8 warps have one under way at least, and what 16 registers hold at most.
    reason, text = only("in_flight", copying(**IDLE | {"stall_long_scoreboard": 0.6}, grid=WARPS / 64, occupancy=0.2))
    assert text.startswith("Perhaps too few bytes in flight: 6.554 kB a multiprocessor at least")
    assert "x 512 B (at least one load at a time) to 2.048 kB (what registers hold) = 6.554 kB to 26.21 kB" in text


def test_data_in_the_l2_are_said_to_lie_there(healthy):
    known = healthy["in_the_l2"]()
    text = verdict(known, explain(known))
    assert "Its data lie in the L2 (300.0 kB of 33.55 MB needed come through memory)" in text
    assert text.endswith("Its warps spend most of their time in 'stall_long_scoreboard': 60%.")


def test_a_full_pipe_of_operations_leaves_its_rest_to_gain(faulty):
    reason, text = only("instructions", faulty("product"))
    assert "the pipe that does the op's operations, 'tensor_op_gmma', is 86% full" in text
    assert "divisions" not in reason.remedy
    assert reason.saves == pytest.approx(0.14 * 2 * 8192**3 / 8e14 / 0.86)


@one_test(
    ("pipe", "remedy"),
    [
        ("lsu", "wider accesses"),
        ("xu", "cheaper functions"),
        ("fp64", "float32"),
        ("alu", "indexes"),
        ("uniform", "no"),
    ],
)
def test_remedies_are_those_of_the_pipe(pipe: str, remedy: str, copying: Callable[..., Known]) -> None:
    reason, _ = only("instructions", copying(**IDLE, **{f"pipe_{pipe}": 0.9}))
    assert remedy in reason.remedy


def test_misaligned_loads_are_only_a_part_of_the_sectors(faulty):
    # 20 of 36 sectors are loads, a fifth of which could be spared.
    reason, text = only("partial_sectors", faulty("misaligned_floats"))
    assert "loads are 55.6% of the sectors, 1 / 5 of these" in text
    assert reason.saves == pytest.approx(min(BEST / 0.85 * 20 / 36 / 5, BEST / 0.85 - BEST))


def test_a_sum_says_where_the_ceiling_ends_it(faulty, copying):
    _, text = only("coalescing", faulty("eight_a_thread"))
    assert "77.8%; no more than 268.4 us lie above the ceiling" in text
    _, text = only("bytes", copying(read_bytes=2 * D))
    # A third of 536.9 us is less than the ceiling leaves.
    assert "saves at most 179.0 us of 536.9 us: (1 - 1 / 1.50) of the time" in text
    assert "ceiling" not in text


def test_counted_bytes_of_sectors_decide(copying):
    floats = {"load_sectors": 8 * WARPS, "store_sectors": 4 * WARPS}
    assert judged("coalescing", copying(**floats, read_bytes=2 * D, load_bytes_a_sector=25)) == []
    _, text = only("coalescing", copying(**floats, load_bytes_a_sector=24))
    assert "lanes use 24.0 of 32 bytes of a sector, so 6.0 sectors would do" in text
    # Broadcasts beside scalars: each request needs the sectors that it has.
    assert judged("coalescing", copying(load_sectors=2 * WARPS, load_bytes_a_sector=20)) == []
    # More sectors than packs of 16 bytes have, all of them used.
    assert judged("coalescing", copying(load_sectors=32 * WARPS, load_bytes_a_sector=32)) == []


def test_what_is_only_likely_is_said_to_be(faulty, uncounted):
    reason, text = only("coalescing", faulty("stride_2_or_twice"))
    assert text.startswith("Perhaps uncoalesced access: ")
    assert reason.saves is None
    reason, text = only("local_memory", uncounted(facts=(KernelFacts("k", 20, 8, 0),)))
    assert (reason.saves, text.startswith("Perhaps local memory: ")) == (None, True)
    pair = (KernelFacts("a", 20, 0, 0), KernelFacts("b", 20, 0, 0))
    reason, text = only("second_kernel", uncounted(facts=pair, traffic=Traffic(D, 2 * D)))
    assert reason.saves is None
    assert text.startswith("Perhaps at least two kernels in place of one: they pass 536.9 MB")
    assert "at least two of these: a, b" in text


def test_times_without_counters_hide_nothing(uncounted):
    facts = (KernelFacts("k", 200, 8, 0),)
    timed = tuple(Seen(KernelProfile(name, 1.0, (("time", BEST),)), 0.5, BEST) for name in "ab")
    with_times = uncounted(facts=facts, tool="torch", kernels=timed)
    assert not with_times.has_counters
    assert {reason.rule for reason in explain(with_times)} == {"local_memory", "occupancy"}
    assert verdict(with_times, ()).endswith("doesn't explain it.")
    # Kernels that were seen are counted, by whomever.
    passed = uncounted(traffic=Traffic(D, 2 * D), tool="torch", kernels=timed)
    assert "2 kernels in place of one" in only("second_kernel", passed)[1]


def test_many_small_kernels_are_looked_at(copying):
    known = copying()
    small = tuple(replace(known.kernels[0], share=1 / 25, seconds=known.time / 25) for _ in range(25))
    assert len(replace(known, kernels=small).major) == 20


def test_what_matters_only_together_is_told_together(copying):
    # 20 of 25 kernels are looked at; each spares 16 of 32 sectors, of 4% of the time.
    known = copying(**IDLE, load_sectors=24 * WARPS, store_sectors=8 * WARPS)
    small = tuple(replace(known.kernels[0], share=1 / 25, seconds=known.time / 25) for _ in range(25))
    (reason,) = (reason for reason in explain(replace(known, kernels=small)) if reason.rule == "coalescing")
    assert reason.sums[-1].startswith("the same in 19 other kernels: together they save at most ")
    assert reason.saves == pytest.approx(known.time * 20 / 25 / 2)


def test_reads_count_though_writes_stay_in_the_l2(faulty):
    _, text = only("bytes", faulty("reads_behind_writes"))
    assert "written 0 B by counters, needed 16.78 MB, so that the L2 keeps the rest" in text
    assert "(33.55 MB needed + 16.78 MB beyond need) / 33.55 MB = 1.50" in text


def test_a_tail_saves_no_more_than_memory_leaves(copying):
    # 1.5 waves leave a quarter of the device idle; a plain stream takes 79% of the time.
    known = copying(time=BEST / 0.79, work=Work(D // 2, D // 2), grid=132 * 8 * 1.5)
    reason, text = only("waves", known)
    assert reason.saves == pytest.approx(0.21 * BEST / 0.79)
    assert "but a plain stream of its bytes takes 268.4 us" in text
