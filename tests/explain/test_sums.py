"""What rules say: faults beside healthy kernels, and sums against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from harness.explain import Known, Reason, all_rules
from harness.explain.rules import bytes as rule_of_bytes
from harness.explain.rules.coalescing import _Side, _sides
from harness.explain.rules.in_flight import warps
from harness.model import ComputePoint, Traffic, Work
from tests.one_test import one_test

D = 2**29
WARPS = 2**20
BEST = 2 * D / 4e12
BUSY = {"dram_active": 0.5, "issue_active": 0.1, "stall_long_scoreboard": 0.2}
OF_A_KERNEL = (
    "stride_32", "stride_2", "eight_a_thread", "divisions", "full_pipe", "local_array", "registers", "small_blocks",
    "narrow", "one_block", "tail", "uneven", "conflicts", "barriers", "product", "dependent", "shallow_pipeline",
    "atomics", "many_barriers", "branches", "divergent", "doubles", "lsu_pipe",
)  # fmt: skip


def told(reasons: Iterable[Reason]) -> str:
    return "\n".join(line for reason in reasons for line in (reason.verdict, *reason.sums))


@one_test("is_first", [True, False])
@one_test("name", OF_A_KERNEL)
def test_a_fault_beside_a_healthy_kernel_is_found_whichever_runs_first(
    name: str, is_first: bool, faulty: Callable[[str], Known], right: dict[str, str], copying: Callable[..., Known]
) -> None:
    known = faulty(name)
    [bad] = known.kernels
    [good] = copying(time=BEST).kernels
    both = [replace(bad, share=0.5), replace(good, share=0.5)]
    two = replace(known, time=known.time + BEST, kernels=tuple(both if is_first else reversed(both)))
    [reason] = all_rules()[right[name]].judge(two)
    assert bad.name in told([reason])


def test_bytes_beyond_need_by_hand(copying: Callable[..., Known], uncounted: Callable[..., Known]) -> None:
    judge = all_rules()["bytes"].judge
    text = told(judge(copying(read_bytes=2 * D, written_bytes=0.5 * D)))
    assert "it moves 1.50 times the bytes that the op needs, by counters" in text
    assert "written 268.4 MB by counters, needed 536.9 MB, so that the L2 keeps the rest" in text
    assert "(1.074 GB needed + 536.9 MB beyond need) / 1.074 GB = 1.50" in text
    assert "keeps the rest" not in told(judge(copying(read_bytes=2 * D)))
    by_count = told(judge(uncounted(traffic=Traffic(2 * D, D // 2))))
    assert "by count" in by_count
    assert "keeps the rest" not in by_count, "nobody has seen what memory gets"


def test_bytes_beyond_need_are_reads_and_writes_each_for_themselves(copying: Callable[..., Known]) -> None:
    beyond = rule_of_bytes.beyond
    assert beyond(copying(read_bytes=1.5 * D, written_bytes=0.5 * D)) == 1.25
    assert beyond(copying(read_bytes=0.5 * D, written_bytes=1.5 * D)) == 1.25
    assert beyond(copying(read_bytes=0.5 * D)) == 1.0
    assert beyond(copying(work=Work())) == 1.0


def test_atomics_without_figures_of_slices_say_nothing_of_them(copying: Callable[..., Known]) -> None:
    judge = all_rules()["atomics"].judge
    counted = BUSY | {"atomic_requests": 9 * WARPS}
    assert "slice of the L2" not in told(judge(copying(**counted)))
    spread = {"atomic_sectors_mean": 10.0, "atomic_sectors_most": 41.0}
    assert "in place, at a few addresses, while" in told(judge(copying(**counted, **spread)))


def test_barriers_without_a_figure_of_waits(copying: Callable[..., Known]) -> None:
    known = copying(**BUSY, pipe_adu=0.9, stall_barrier=0.5)
    assert "warps wait at barriers in 50% of their time" in told(all_rules()["barriers"].judge(known))


@pytest.mark.parametrize(("time", "times"), [(2.6 * BEST, 2.5), (4 * BEST, 1.0)])
def test_bytes_beyond_need_matter_beside_operations_if_they_take_most_of_the_time(
    uncounted: Callable[..., Known], time: float, times: float
) -> None:
    """Operations take twice the time of the bytes needed at best; a stream of the bytes that are moved 2.5 times."""
    streams = uncounted().subject.limits
    assert streams
    limits = replace(streams, compute=(ComputePoint("float16", 8, 8, 8, 8e14, "library"),))
    work = Work(D, D, (("float16", round(2 * BEST * 8e14)),))
    known = uncounted(time, work, limits=limits, traffic=Traffic(4 * D, D))
    assert known.subject.bound_by_compute
    assert rule_of_bytes.beyond(known) == pytest.approx(times)


def loads(sectors: float, **known: float | None) -> _Side:
    """Loads of so many sectors a request; nothing else is known of them unless it is given."""
    asked: dict[str, Any] = {"moved": None, "need": 0, "other": 0.0, "widest": 16, "used": None, **known}
    return _Side("load", 1.0, sectors, **asked)


@one_test(
    ("side", "ideal"),
    [
        # By the share of the bytes of sectors that lanes use.
        (loads(8.0, used=0.5), 4.0),
        (loads(4.0, used=0.5), 2.0),
        (loads(3.9, used=0.5), None),
        (loads(32.0, used=0.8), None),
        # More than any coalesced access has: as the other side has, or as are needed, from 4 to 16.
        (loads(20.0), None),
        (loads(21.0), 4.0),
        (loads(21.0, other=8.0), 8.0),
        (loads(21.0, need=32 * 12), 12.0),
        (loads(24.0, need=32 * 20), 16.0),
        (loads(41.0, widest=32), None),
        (loads(42.0, widest=32, other=32.0), 32.0),
        # Wasted only where memory gives more than needed, too; packs of 16 bytes are read twice.
        (loads(9.0, need=32 * 8, moved=32 * 16), None),
        (loads(11.0, need=32 * 8, moved=32 * 16), 8.0),
        (loads(11.0, need=32 * 8, moved=32 * 10), None),
        (loads(11.0, need=32 * 8), None),
        (loads(16.4, need=32 * 8, moved=32 * 16), None),
        (loads(15.4, need=32 * 8, moved=32 * 16), 8.0),
        (loads(32.0, need=32 * 8, moved=32 * 16, widest=32), None),
    ],
)
def test_sectors_that_would_do(side: _Side, ideal: float | None) -> None:
    assert side.ideal == ideal


def test_packs_of_eight_bytes_are_doubtful() -> None:
    sectors = {7.4: False, 7.6: True, 8.4: True, 8.6: False}
    assert {each: loads(each).doubtful for each in sectors} == sectors
    assert not loads(8.0, used=0.5).doubtful


@pytest.mark.parametrize(
    ("counted", "others"),
    [
        ({"load": 16, "store": 4}, {"load": 4.0, "store": 16.0}),
        ({"load": 20, "store": 4}, {"load": 4.0, "store": 0.0}),
        ({"load": 4}, {"load": 0.0}),
    ],
)
def test_loads_and_stores_are_compared_as_far_as_the_other_side_is_coalesced(
    copying: Callable[..., Known], counted: dict[str, int], others: dict[str, float]
) -> None:
    requests = {"load": 100.0, "store": 200.0}
    values = {"load_requests": 0.0, "store_requests": 0.0}
    for name, each in counted.items():
        values |= {f"{name}_requests": requests[name], f"{name}_sectors": requests[name] * each}
    known = copying(**values)
    assert {side.name: side.other for side in _sides(known, known.kernels[0])} == others


def beside(known: Known) -> Known:
    """The same kernel beside a second one like it."""
    [kernel] = known.kernels
    half = replace(kernel, share=0.5, seconds=known.time / 2)
    return replace(known, kernels=(half, half))


def test_what_coalescing_is_held_to_is_told(faulty: Callable[[str], Known], copying: Callable[..., Known]) -> None:
    judge = all_rules()["coalescing"].judge
    assert "lanes use 16.0 of 32 bytes of a sector, so 4.0 sectors would do" in told(judge(faulty("stride_2")))
    alone = faulty("stride_32")
    wanted = "ideal 4.0: as needed or as stores have, 4 (4 bytes a lane) to 16 sectors"
    assert wanted in told(judge(alone))
    assert "ideal 4.0: as stores have, at least 4 (4 bytes a lane)" in told(judge(beside(alone)))
    # Nobody knows what each of several kernels needs.
    wasting = copying(read_bytes=2 * D, load_requests=2 * WARPS, load_sectors=24 * WARPS, store_requests=0)
    assert len(list(judge(wasting))) == 1
    assert list(judge(beside(wasting))) == []


def test_one_side_that_is_surely_uncoalesced_is_enough(copying: Callable[..., Known]) -> None:
    """Loads of 8 sectors may be packs that are read twice; stores of 32 sectors can't be."""
    doubtful = {"read_bytes": 4 * D, "load_requests": 4 * WARPS, "load_sectors": 32 * WARPS, "store_requests": 0.0}
    judge = all_rules()["coalescing"].judge
    assert told(judge(copying(**doubtful))).startswith("Perhaps uncoalesced")
    both = doubtful | {"store_requests": float(WARPS), "store_sectors": 32.0 * WARPS}
    assert told(judge(copying(**both))).startswith("Uncoalesced")


def test_wavefronts_that_are_all_conflicts(copying: Callable[..., Known]) -> None:
    cycles = 132 * 1.7e9 * BEST
    known = copying(**BUSY, shared_wavefronts=cycles, shared_conflicts=cycles)
    assert "nothing but conflicts" in told(all_rules()["conflicts"].judge(known))


def test_lanes_that_wait_save_their_share_or_all_but_a_stream(copying: Callable[..., Known]) -> None:
    judge = all_rules()["divergence"].judge
    counted = BUSY | {"issue_active": 0.9}
    [few] = judge(copying(**counted, active_lanes=23))
    assert few.saves == pytest.approx((1 - 23 / 32) * 2 * BEST)
    assert "an instruction has 23.0 of 32 lanes on average" in few.verdict
    assert "(1 - 23.0 / 32) of it" in told([few])
    [fewer] = judge(copying(**counted, active_lanes=8))
    assert fewer.saves == pytest.approx(BEST)
    assert "75% of them idly" in told([fewer])
    assert "268.4 us is what its bytes take as a plain stream" in told([fewer])


@one_test(
    ("capability", "resident"),
    [("7.0", 64), ("7.5", 32), ("8.0", 64), ("8.6", 48), ("8.7", 48), ("8.9", 48), ("9.0", 64), ("10.0", 64),
     ("12.0", 48), ("12.1", 48)],
)  # fmt: skip
def test_warps_that_a_multiprocessor_holds(uncounted: Callable[..., Known], capability: str, resident: int) -> None:
    """By the table of technical specifications of NVIDIA's programming guide."""
    known = uncounted()
    assert warps(replace(known, device=replace(known.device, compute_capability=capability))) == resident
