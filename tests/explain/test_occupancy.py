"""Few warps on a multiprocessor: what limits them, what that saves, and what to do; and misaligned accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.explain import Known, Reason, all_rules
from harness.model import KernelFacts
from tests.one_test import one_test

BEST = 2 * 2**29 / 4e12
IDLE = {"dram_active": 0.5, "issue_active": 0.1, "stall_long_scoreboard": 0.2, "occupancy": 0.4}
ALONE = {"blocks_by_registers": 16.0, "blocks_by_shared": 32.0, "blocks_by_warps": 8.0, "blocks_by_slots": 32.0}
Copying = Callable[..., Known]


def found(copying: Copying, **values: float) -> Reason:
    [reason] = all_rules()["occupancy"].judge(copying(**{**IDLE, **values}))
    return reason


@one_test(
    ("least", "why", "remedy"),
    [
        ("blocks_by_registers", "registers allow no more than 40%", "fewer registers"),
        ("blocks_by_warps", "the size of the blocks allows no more than 40%", "blocks whose number of warps"),
        ("blocks_by_slots", "the number of blocks allows no more than 40%", "larger blocks"),
        ("blocks_by_shared", "shared memory allows no more than 40%", "less shared memory"),
    ],
)
def test_what_allows_the_fewest_blocks_is_the_limit(copying: Copying, least: str, why: str, remedy: str) -> None:
    reason = found(copying, occupancy_limit=0.4, **{**ALONE, least: 2.0})
    assert reason.verdict.endswith(f"40% of the warps are resident; {why}.")
    assert remedy in reason.remedy


def test_copies_to_shared_memory_want_more_of_it_under_way(copying: Copying) -> None:
    """Three bytes of four come by copies; a block of four warps has 8 KB."""
    copies = {"load_sectors": 8.0, "block": 128.0, "shared_bytes": 8192.0, "occupancy": 4 / 64}
    reason = found(copying, **copies, occupancy_limit=4 / 64, **{**ALONE, "blocks_by_shared": 1.0})
    assert reason.remedy.startswith("copy more bytes ahead of the work")
    other = found(copying, **copies, occupancy_limit=4 / 64, **{**ALONE, "blocks_by_registers": 1.0})
    assert "fewer registers" in other.remedy


def test_where_nothing_limits_warps_the_grid_or_its_blocks_do(copying: Copying) -> None:
    """A limit of more than half of the warps is none."""
    uneven = found(copying, occupancy_limit=0.6, waves=7.0, grid=132 * 56)
    assert uneven.verdict.endswith("the grid doesn't fill it, or blocks end unevenly.")
    assert uneven.remedy.startswith("make the grid larger")
    short = found(copying, occupancy_limit=0.6, waves=8.0, grid=132 * 64)
    assert short.verdict.endswith("blocks end as fast as new blocks start.")
    assert short.remedy.startswith("give a block more work")
    line = "8 waves of blocks wait, and a multiprocessor starts one in 8.389 us: 536.9 us / (8448 blocks / 132)"
    assert line in short.sums
    limited = found(copying, occupancy_limit=0.5, waves=8.0, grid=132 * 64)
    assert "waves of blocks wait" not in " ".join(limited.sums)


def test_what_a_block_takes_is_told(copying: Copying) -> None:
    assert "16 registers a thread, 256 threads a block" in found(copying).sums
    shared = "16 registers a thread, 256 threads a block, 8.192 kB of shared memory a block"
    assert shared in found(copying, shared_bytes=8192.0).sums


def test_the_rate_of_blocks_is_of_a_launch(copying: Copying) -> None:
    quarter = {"read_bytes": 2.0**27, "written_bytes": 2.0**27}
    known = copying(**IDLE, **quarter, waves=8.0, grid=132 * 64, occupancy_limit=0.6)
    [kernel] = known.kernels
    four = replace(known, kernels=(replace(kernel, profile=replace(kernel.profile, launches=4.0)),))
    [reason] = all_rules()["occupancy"].judge(four)
    assert "starts one in 2.097 us: 134.2 us / (8448 blocks / 132)" in " ".join(reason.sums)


def test_more_warps_save_what_is_missing_or_all_that_is_idle(copying: Copying) -> None:
    """The copy takes twice its stream: half of its time is idle at most."""
    assert found(copying).saves == pytest.approx(BEST)
    slow = found(copying, occupancy=0.49, time=4 * BEST)
    assert slow.saves == pytest.approx(0.51 * 4 * BEST), "51% are missing"
    rest = found(copying, occupancy=0.49, issue_active=0.7, time=2.5 * BEST)
    assert rest.saves == pytest.approx(0.3 * 2.5 * BEST)


@one_test(
    ("registers", "text"),
    [(128, "25% of the warps"), (129, "23.4% of the warps"), (64, None), (65, "43.8% of the warps")],
)
def test_registers_without_counters_are_rounded_up_to_eight(
    uncounted: Callable[..., Known], registers: int, text: str | None
) -> None:
    facts = (KernelFacts("small", 16, 0, 0), KernelFacts("large", registers, 0, 0))
    reasons = list(all_rules()["occupancy"].judge(uncounted(facts=facts)))
    assert [f"the registers of large allow {text}" in reason.verdict for reason in reasons] == ([True] if text else [])
    assert all(reason.remedy.startswith("spend fewer registers") for reason in reasons)


def test_stores_that_are_misaligned_are_found_where_nothing_is_loaded(copying: Copying) -> None:
    """17 sectors a request where 16 would do, of all sectors that there are."""
    stores = {"load_requests": 0.0, "load_sectors": 0.0, "store_requests": 2.0**20, "store_sectors": 17 * 2.0**20}
    [reason] = all_rules()["partial_sectors"].judge(copying(**stores))
    assert reason.verdict.startswith("Misaligned stores: each touches 17 sectors of 32 bytes, where 16 would do.")
    assert reason.saves == pytest.approx(2 * BEST / 17)
    # 17 sectors of 7% more bytes than are needed are another mix.
    assert not list(all_rules()["partial_sectors"].judge(copying(**{**stores, "store_requests": 1.07 * 2**20,
                                                                    "store_sectors": 1.07 * 17 * 2**20})))  # fmt: skip
