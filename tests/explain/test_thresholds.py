"""Each rule at both sides of its threshold, and its sums against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from harness.explain import Known, Reason, Sibling, all_rules
from harness.explain.rules.bytes import MORE
from harness.model import KernelFacts, Limits, StreamPoint, Traffic, Work
from tests.explain.conftest import COPY, COPY_WORK, IDLE, SLOW, made
from tests.one_test import one_test

D = 2**29
WARPS = 2**20
BEST = 2 * D / 4e12
BUSY = {"dram_active": 0.5, "issue_active": 0.1, "stall_long_scoreboard": 0.2}
AT_81, AT_79 = {"time": BEST / 0.81}, {"time": BEST / 0.79}  # a plain stream takes that share of the time
WIDER = {"load_requests": 2 * WARPS, "load_sectors": 24 * WARPS, "store_requests": 4 * WARPS}
LATE = 132 * 1.7e9 * 2 * BEST  # cycles of all multiprocessors in the time of the fixture's copy


def judged(rule: str, known: Known) -> list[Reason]:
    return list(all_rules()[rule].judge(known))


def told(reasons: Iterable[Reason]) -> str:
    return "\n".join(line for reason in reasons for line in (reason.verdict, *reason.sums))


@one_test(
    ("rule", "quiet", "loud"),
    [
        ("bytes", {"read_bytes": 1.05 * D}, {"read_bytes": 1.07 * D}),
        # 16 sectors are packs of 16 bytes; beyond 1.3 times that no coalesced access is possible.
        ("coalescing", {"load_sectors": 20 * WARPS}, {"load_sectors": 21 * WARPS}),
        # Loads of 12 sectors where 8 hold the bytes needed, beside stores of 4: judged by the bytes through memory.
        ("coalescing", WIDER | {"read_bytes": 1.2 * D}, WIDER | {"read_bytes": 1.4 * D}),
        ("partial_sectors", {"load_sectors": 16.8 * WARPS}, {"load_sectors": 17 * WARPS}),
        ("partial_sectors", {"store_sectors": 17.2 * WARPS}, {"store_sectors": 17 * WARPS}),
        # Other mixes that have 17 sectors a request aren't misaligned: they touch too many bytes.
        ("partial_sectors", {"load_requests": 2 * WARPS, "load_sectors": 34 * WARPS}, {"load_sectors": 17 * WARPS}),
        ("conflicts", BUSY | {"shared_wavefronts": LATE, "shared_conflicts": 0.09 * LATE},
         BUSY | {"shared_wavefronts": LATE, "shared_conflicts": 0.11 * LATE}),
        ("conflicts", BUSY | {"shared_wavefronts": 0.1 * LATE, "shared_conflicts": 0.04 * LATE},
         BUSY | {"shared_wavefronts": 0.1 * LATE, "shared_conflicts": 0.06 * LATE}),
        # 32 sectors are loaded and stored by a warp: 5% of all is 1.68 local ones.
        ("local_memory", {"local_sectors": 1.6 * WARPS}, {"local_sectors": 1.8 * WARPS}),
        ("instructions", BUSY | {"issue_active": 0.59}, BUSY | {"issue_active": 0.61}),
        # Schedulers that issue in 70% of cycles, beside warps that wait for memory half of their time.
        ("instructions", BUSY | {"issue_active": 0.7, "stall_long_scoreboard": 0.51},
         BUSY | {"issue_active": 0.7, "stall_long_scoreboard": 0.49}),
        ("instructions", BUSY | {"issue_active": 0.74, "stall_long_scoreboard": 0.8},
         BUSY | {"issue_active": 0.76, "stall_long_scoreboard": 0.8}),
        ("instructions", {"issue_active": 0.9} | AT_81, {"issue_active": 0.9} | AT_79),
        ("instructions", BUSY | {"pipe_xu": 0.69}, BUSY | {"pipe_xu": 0.71}),
        # One block fits a multiprocessor at a time.
        # 2 M loads and stores: from 0.5 M atomics on, a fifth of all requests are atomics.
        ("atomics", BUSY | {"atomic_requests": 0.49 * WARPS}, BUSY | {"atomic_requests": 0.51 * WARPS}),
        ("atomics", BUSY | {"atomic_requests": 9 * WARPS, "issue_active": 0.76},
         BUSY | {"atomic_requests": 9 * WARPS, "issue_active": 0.74}),
        ("barriers", BUSY | {"pipe_adu": 0.69, "stall_barrier": 0.5}, BUSY | {"pipe_adu": 0.71, "stall_barrier": 0.5}),
        ("barriers", BUSY | {"pipe_adu": 0.9, "stall_barrier": 0.09}, BUSY | {"pipe_adu": 0.9, "stall_barrier": 0.11}),
        ("barriers", {"pipe_adu": 0.9, "stall_barrier": 0.5} | AT_81, {"pipe_adu": 0.9, "stall_barrier": 0.5} | AT_79),
        ("instructions", BUSY | {"pipe_adu": 0.9, "stall_barrier": 0.11}, BUSY | {"pipe_adu": 0.9}),
        ("divergence", BUSY | {"issue_active": 0.9, "active_lanes": 24},
         BUSY | {"issue_active": 0.9, "active_lanes": 23}),
        # Few lanes cost nothing where instructions aren't what bounds the kernel.
        ("divergence", BUSY | {"active_lanes": 8}, BUSY | {"active_lanes": 8, "pipe_fma": 0.75}),
        ("double", BUSY | {"pipe_fp64": 0.09}, BUSY | {"pipe_fp64": 0.11}),
        ("double", {"pipe_fp64": 0.5} | AT_81, {"pipe_fp64": 0.5} | AT_79),
        ("waves", {"grid": 132 * 2 - 13, "blocks_by_warps": 1}, {"grid": 132 * 2 - 14, "blocks_by_warps": 1}),
        ("waves", {"grid": 132}, {"grid": 131}),
        ("waves", {"grid": 132 * 8}, {"grid": 132 * 8 + 132}),
        ("occupancy", BUSY | {"occupancy": 0.51}, BUSY | {"occupancy": 0.49}),
        ("occupancy", BUSY | {"occupancy": 0.3} | AT_81, BUSY | {"occupancy": 0.3} | AT_79),
        ("occupancy", BUSY | {"occupancy": 0.3, "issue_active": 0.76}, BUSY | {"occupancy": 0.3, "issue_active": 0.74}),
        ("occupancy", BUSY | {"occupancy": 0.3, "pipe_fma": 0.71}, BUSY | {"occupancy": 0.3, "pipe_fma": 0.69}),
        # 2 TB/s of reads x 1 us / 132 = 15.15 KB; 512 bytes of 64 warps are 32.8 KB.
        ("in_flight", BUSY | {"occupancy": 0.47}, BUSY | {"occupancy": 0.46}),
        ("in_flight", BUSY | {"stall_long_scoreboard": 0.49}, BUSY | {"stall_long_scoreboard": 0.51}),
        ("in_flight", BUSY | {"occupancy": 0.3} | AT_81, BUSY | {"occupancy": 0.3} | AT_79),
        # Waits for a memory that is 61% busy are no proof that too little is under way.
        ("in_flight", {"time": BEST / 0.61}, {"time": BEST / 0.59}),
        ("waits", BUSY | {"stall_barrier": 0.29}, BUSY | {"stall_barrier": 0.31}),
        ("waits", BUSY | {"stall_barrier": 0.4} | AT_81, BUSY | {"stall_barrier": 0.4}),
    ],
)  # fmt: skip
def test_a_rule_speaks_beyond_its_threshold_only(
    rule: str, quiet: dict[str, float], loud: dict[str, float], copying: Callable[..., Known]
) -> None:
    assert judged(rule, copying(**quiet)) == []
    assert [reason.rule for reason in judged(rule, copying(**loud))] == [rule]


@one_test(
    ("rule", "quiet", "loud"),
    [
        ("bytes", {"traffic": Traffic(int(1.05 * D), D)}, {"traffic": Traffic(int(1.07 * D), D)}),
        # 128 registers leave 16 of 64 warps; 64 leave half.
        ("occupancy", {"facts": (KernelFacts("k", 64, 0, 0),)}, {"facts": (KernelFacts("k", 65, 0, 0),)}),
        ("local_memory", {"facts": (KernelFacts("k", 20, 0, 0),)}, {"facts": (KernelFacts("k", 20, 8, 0),)}),
        (
            "second_kernel",
            {"facts": (KernelFacts("a", 20, 0, 0), KernelFacts("b", 20, 0, 0)), "traffic": Traffic(2 * D, D)},
            {"facts": (KernelFacts("a", 20, 0, 0), KernelFacts("b", 20, 0, 0)), "traffic": Traffic(D, 2 * D)},
        ),
        ("host", {"call_time": 1.24 * 2 * BEST}, {"call_time": 1.26 * 2 * BEST}),
    ],
)
def test_a_rule_without_counters(
    rule: str, quiet: dict[str, Any], loud: dict[str, Any], uncounted: Callable[..., Known]
) -> None:
    assert judged(rule, uncounted(**quiet)) == []
    assert [reason.rule for reason in judged(rule, uncounted(**loud))] == [rule]


def test_a_launch_is_the_shortest_stream_or_a_typical_one(uncounted):
    small = Work(2**19, 2**19)
    shortest = Limits((StreamPoint(2**19, 2**19, 1.5e-6, "kernel"), StreamPoint(2**29, 2**29, 3e-4, "kernel")))
    assert judged("launches", uncounted(4.6e-6, small, limits=shortest)) == []
    (reason,) = judged("launches", uncounted(4.4e-6, small, limits=shortest))
    assert (reason.saves, reason.aside) == (None, True)
    assert "4.400 us / 1.500 us = 2.9 launches" in reason.sums
    assert judged("launches", uncounted(6.1e-6, small, limits=None)) == []
    assert len(judged("launches", uncounted(5.9e-6, small, limits=None))) == 1


def test_a_faster_variant_with_fewer_kernels_is_named(unfused):
    """Five kernels by a profiler that counts nothing, beside variants with one, with three, and with none known."""
    assert judged("launches", unfused(Sibling("eager", BEST))) == []
    assert judged("launches", unfused(Sibling("eager", BEST, 3.0))) == []
    assert judged("launches", unfused(Sibling("eager", 9 * BEST, 1.0))) == []
    (reason,) = judged("launches", unfused(Sibling("eager", 2 * BEST, 1.0)))
    assert reason.verdict == "More kernels than needed: 5 a call, where 'eager' has 1 and takes 536.9 us."
    assert reason.saves == pytest.approx(4 * 2 * D / 4e12 / 0.9 - 2 * BEST)


def test_what_is_in_float64_by_intent_is_no_accident(copying):
    use = BUSY | {"pipe_fp64": 0.9}
    known = copying(**use)
    assert len(judged("double", known)) == 1
    assert judged("double", replace(known, case=replace(known.case, dtype="float64"))) == []
    assert judged("double", copying(work=Work(D, D, (("float64", 10**9),)), **use)) == []


def test_atomics_that_meet_are_told(faulty, copying):
    text = told(judged("atomics", faulty("atomics")))
    assert "Atomics: 80% of the requests for global memory change it in place, at a few addresses" in text
    assert "the busiest slice of the L2 changes 4.000 M sectors, 40.0 times the mean" in text
    spread = {"atomic_requests": 9 * WARPS, "atomic_sectors_mean": 10.0, "atomic_sectors_most": 39.0}
    assert "at a few addresses" not in told(judged("atomics", copying(**BUSY, **spread)))


def test_rules_that_need_counters_are_quiet_without(uncounted):
    for rule in (
        "atomics",
        "barriers",
        "divergence",
        "double",
        "coalescing",
        "partial_sectors",
        "conflicts",
        "instructions",
        "waves",
        "in_flight",
        "waits",
    ):
        assert judged(rule, uncounted()) == []


def test_sums_of_bytes_in_flight(faulty):
    text = told(judged("in_flight", faulty("narrow")))
    # 0.9 x 64 warps of 128 bytes; 2 TB/s x 1 us / 132.
    assert "90% of 64 warps = 57.6 warps x 128 B (all that a warp reads from memory) = 7.373 kB" in text
    assert "2000 GB/s of reads at best x 1.0 us (typical of a busy memory) / 132 = 15.15 kB" in text
    assert "saves at most 268.4 us of 536.9 us: 268.4 us go to streaming" in text


def test_sums_of_coalescing(faulty):
    text = told(judged("coalescing", faulty("stride_32")))
    assert "touches 32.0 sectors of 32 bytes, where 4.0 would do" in text
    assert "loads: 33.55 M sectors / 1.049 M requests = 32.0" in text
    assert "through memory: 1.074 GB, 8.00 times what is needed" in text
    # 4 + 4 sectors would do in place of 32 + 4.
    assert "29.36 M of 37.75 M sectors could be spared, 77.8%" in text


def test_sums_of_occupancy(faulty):
    text = told(judged("occupancy", faulty("registers")))
    assert "12.5% of the warps are resident; registers allow no more than 12.5%" in text
    assert "= 8.0 warps a multiprocessor" in text
    assert "registers 1, the size of the blocks 8, the number of blocks 32, shared memory 32" in text
    assert "the number of blocks allows no more than" in told(judged("occupancy", faulty("small_blocks")))


def test_sums_of_waves(faulty):
    assert "277 blocks / (132 multiprocessors x 2 at a time) = 1.05" in told(judged("waves", faulty("tail")))
    assert "1 - 1.05 / 2 = 47.5%" in told(judged("waves", faulty("tail")))
    assert "140 blocks / 132 multiprocessors = 1.06" in told(judged("waves", faulty("uneven")))
    assert "1 block for 132 multiprocessors, so 99.2% of the device is idle" in told(
        judged("waves", faulty("one_block"))
    )


def test_waves_by_the_profiler_where_it_tells_no_limits(copying):
    names = ("blocks_by_registers", "blocks_by_shared", "blocks_by_warps", "blocks_by_slots")
    unknown = dict.fromkeys(names, 0.0)
    assert judged("waves", copying(**unknown, grid=400, waves=2.0)) == []
    assert "1.50 waves, by the profiler" in told(judged("waves", copying(**unknown, grid=400, waves=1.5)))
    assert judged("waves", copying(**unknown, grid=400)) == []


def test_sums_of_instructions(faulty):
    text = told(judged("instructions", faulty("divisions")))
    # 0.9 x 4 x 132 x 1.7 GHz x 620 us = 500.9 M; x 32 / 2^28 words.
    assert "500.9 M instructions of warps x 32 lanes / 268.4 M words of 4 bytes that the op moves = 59.7 a word" in text
    assert "fullest pipe: alu, which got 80% of the instructions that it can take" in text
    assert "saves at most 351.6 us of 620.0 us: 268.4 us is what its bytes take" in text
    assert "the pipe 'xu' is 90% full" in told(judged("instructions", faulty("full_pipe")))


def test_sums_of_conflicts(faulty):
    text = told(judged("conflicts", faulty("conflicts")))
    # 33 wavefronts where 2 would do; half of the time is wavefronts.
    assert "16.5 times the cycles that it needs, 47% of the kernel's time" in text
    assert "(132 x 1700 MHz) = 252.2 us" in text


def test_sums_of_kernels_in_a_row(faulty):
    text = told(judged("second_kernel", faulty("unfused")))
    assert "5 kernels in place of one: they pass 1.074 GB through memory, by counters" in text
    assert "subtract: 25% of the time, read 536.9 MB, written 536.9 MB" in text
    assert "moved 4.295 GB, 1.074 GB needed: 4.00 times" in text
    (reason,) = judged("launches", faulty("many_launches"))
    # The shortest stream of the fixture: 2 MB at 4 TB/s.
    assert reason.saves == pytest.approx(15 * 2**21 / 4e12)


def test_what_waves_save(faulty, copying):
    (tail,) = judged("waves", faulty("tail"))
    assert "the last one fills 4.92% of its places" in tail.verdict
    assert tail.saves == pytest.approx(SLOW * (1 - 277 / 264 / 2))
    # Memory is busy all the same.
    assert judged("waves", faulty("two_passes_tail")) == []
    names = ("blocks_by_registers", "blocks_by_shared", "blocks_by_warps", "blocks_by_slots")
    unknown = {**dict.fromkeys(names, 0.0), "grid": 400.0}
    assert judged("waves", copying(**unknown, waves=1.0)) == []
    # A profiler's hundredths are lowered by half of one.
    (rounded,) = judged("waves", copying(**unknown, **IDLE, waves=1.5, time=SLOW))
    assert rounded.saves == pytest.approx(SLOW * (1 - 1.495 / 2))


def test_each_kernel_has_waves_of_its_own():
    half = {**COPY, **IDLE, "read_bytes": D / 2, "written_bytes": D / 2, "blocks_by_warps": 2}
    known = made(SLOW, COPY_WORK, ("few", 0.5, {**half, "grid": 66}), ("tailed", 0.5, {**half, "grid": 277}))
    small, tail = judged("waves", known)
    assert small.verdict.startswith("Too small a grid: 66 blocks")
    assert tail.verdict.startswith("A tail")
    # Nobody counted how busy memory is.
    (uncounted,) = judged("waves", made(SLOW, COPY_WORK, ("few", 1.0, {"grid": 66})))
    assert uncounted.saves == pytest.approx(SLOW / 2)


def test_what_kernels_in_a_row_save_and_when_there_are_none(faulty, uncounted):
    unfused = faulty("unfused")
    (reason,) = judged("second_kernel", unfused)
    assert reason.saves == pytest.approx(unfused.time * (1 - 1 / 4))
    assert "counters tell" not in told([reason])
    alone = KernelFacts("a", 20, 0, 0)
    assert judged("second_kernel", uncounted(facts=(alone,), traffic=Traffic(D, 2 * D))) == []
    several = told(
        judged("second_kernel", uncounted(facts=(alone, replace(alone, name="b")), traffic=Traffic(D, 2 * D)))
    )
    assert "counters tell which of them are launched" in several
    assert "at least two of these: a, b" in several
    assert "at least two of these" not in told([reason])


def test_kernels_that_write_what_is_needed_and_a_little_are_not_to_be_fused():
    def pair(written: float) -> Known:
        each = {**COPY, "read_bytes": 2 * D, "written_bytes": written / 2}
        return made(4 * SLOW, COPY_WORK, ("a", 0.5, each), ("b", 0.5, each))

    assert judged("second_kernel", pair(MORE * D)) == []
    assert judged("second_kernel", pair(1.01 * MORE * D))


def test_what_waits_save(faulty, copying):
    (reason,) = judged("waits", faulty("barriers"))
    # 60% of the time are waits, but half of the time is what its bytes take.
    assert reason.saves == pytest.approx(SLOW / 2)
    assert reason.verdict.endswith("while memory is 50% busy.")
    (reason,) = judged("waits", copying(**IDLE, stall_barrier=0.35, time=SLOW))
    assert reason.saves == pytest.approx(0.35 * SLOW)
