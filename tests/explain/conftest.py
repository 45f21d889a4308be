"""Kernels that each have one fault, with the counters that follow from what they do, and healthy ones beside them.

The device has 132 multiprocessors of 64 warps and 65536 registers, and streams 4 TB/s. D is 2^29 bytes, a tensor of
2^27 floats: a copy moves 2 D, for which the ceiling is 268.4 us.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness import metrics
from harness.devices.cuda import Cuda
from harness.explain import Known, Seen, Sibling
from harness.model import (
    Case,
    ComputePoint,
    DeviceFacts,
    KernelFacts,
    KernelProfile,
    Limits,
    Measurement,
    Result,
    StreamPoint,
    Traffic,
    Work,
)

D = 2**29
PEAK = 4e12
BEST = 2 * D / PEAK
WARPS = 2**20  # of a copy of D bytes by packs of 16 bytes: D / 512
CLOCK = 1.7e9
DEVICE = DeviceFacts("A GPU", 141 * 10**9, 50 * 10**6, "9.0", 132, 1.98e9)
LIMITS = Limits(
    tuple(
        StreamPoint(size * read, size * written, size * (read + written) / PEAK, "kernel")
        for size in (2**20, 2**30)
        for read, written in ((2, 0), (1, 1), (0, 2))
    )
)

COPY: dict[str, float] = {
    "grid": WARPS / 8,
    "block": 256,
    "registers": 16,
    "shared_bytes": 0,
    "local_bytes": 0,
    "occupancy": 0.9,
    "occupancy_limit": 1.0,
    "blocks_by_registers": 16,
    "blocks_by_shared": 32,
    "blocks_by_warps": 8,
    "blocks_by_slots": 32,
    "read_bytes": D,
    "written_bytes": D,
    "l2_hit": 0.5,
    "load_requests": WARPS,
    "load_sectors": 16 * WARPS,
    "store_requests": WARPS,
    "store_sectors": 16 * WARPS,
    "local_sectors": 0,
    "shared_wavefronts": 0,
    "shared_conflicts": 0,
    "instructions": 12 * WARPS,
    "issue_active": 0.06,
    "dram_active": 0.93,
    "stall_long_scoreboard": 0.8,
    "clock": CLOCK,
}
"""A healthy copy of D bytes: 512 bytes a request, 58 warps a multiprocessor, so 29 KB in flight where 15 KB will do."""
IDLE = {"dram_active": 0.5, "issue_active": 0.1, "stall_long_scoreboard": 0.2}
"""Neither memory nor schedulers are busy, and warps don't wait for memory."""


def scaled(times: float, **values: float) -> dict[str, float]:
    """The copy with so many times the requests of global memory, and other changes."""
    names = ("load_requests", "store_requests", "load_sectors", "store_sectors")
    return {**COPY, **{name: COPY[name] * times for name in names}, **values}


def _issued(share: float, time: float) -> float:
    """Instructions of warps that four schedulers of each multiprocessor issue in that share of the cycles."""
    return share * 4 * DEVICE.multiprocessors * CLOCK * time


def seen(time: float, *kernels: tuple[str, float, dict[str, float]]) -> tuple[Seen, ...]:
    """Kernels by name, share of the time and values of a launch; one launch each."""
    return tuple(
        Seen(KernelProfile(name, 1.0, tuple({**values, "time": share * time}.items())), share, share * time)
        for name, share, values in kernels
    )


def made(time: float, work: Work, *kernels: tuple[str, float, dict[str, float]], **fields: Any) -> Known:
    """What is known of a case with these kernels; facts and call_time as a measurement has them."""
    case = Case("op", "variant", "float32", (("N", D // 4),))
    facts, call = fields.pop("facts", ()), fields.pop("call_time", 1.01 * time)
    measurement = Measurement(
        case,
        "ok",
        (time,),
        (call,),
        "graph",
        work,
        fields.pop("traffic", Traffic(work.read, work.written)),
        kernels=facts,
    )
    subject = metrics.Subject.of(Result(case, (measurement,)), fields.pop("limits", LIMITS))
    known = Known(case, time, subject, DEVICE, "op", "ncu" if kernels else "", seen(time, *kernels), facts)
    return replace(known, kind=Cuda(), **fields)


COPY_WORK = Work(D, D)
SLOW = BEST / 0.5
BY_TMA: dict[str, float] = {
    **COPY, "grid": 132, "block": 128, "registers": 32, "shared_bytes": 200 * 1024, "occupancy": 4 / 64,
    "occupancy_limit": 4 / 64, "blocks_by_shared": 1, "blocks_by_registers": 16, "blocks_by_warps": 16,
    "read_bytes": 2 * D, "written_bytes": 4 * 132, "load_requests": 0, "load_sectors": 0, "store_requests": 132,
    "store_sectors": 132, "issue_active": 0.12, "dram_active": 0.78, "stall_long_scoreboard": 0.55,
}  # fmt: skip
"""A sum of 2 D bytes, which copies to shared memory bring, past the registers."""
PRODUCT: dict[str, float] = {
    **BY_TMA, "block": 384, "registers": 168, "occupancy": 12 / 64, "occupancy_limit": 12 / 64,
    "blocks_by_registers": 1, "blocks_by_warps": 5, "read_bytes": 6 * 2 * 8192**2, "written_bytes": 2 * 8192**2,
    "dram_active": 0.2, "stall_long_scoreboard": 0.3, "pipe_tensor_op_gmma": 0.86,
}  # fmt: skip
"""A product of two matrices of 8192 x 8192 in float16: each is read three times."""
PRODUCT_WORK = Work(2 * 2 * 8192**2, 2 * 8192**2, (("float16", 2 * 8192**3),))
WITH_COMPUTE = replace(LIMITS, compute=(ComputePoint("float16", 8192, 8192, 8192, 8e14, "library"),))


def _unfused() -> Known:
    parts = {"max": (D, 0), "subtract": (D, D), "exp": (D, D), "sum": (D, 0), "divide": (D, D)}
    time = 8 * D / PEAK / 0.9
    kernels = [
        (name, (read + written) / (8 * D), {**COPY, "read_bytes": read, "written_bytes": written, "store_requests": 0})
        for name, (read, written) in parts.items()
    ]
    return made(time, COPY_WORK, *kernels)


# fmt: off
FAULTS: dict[str, tuple[str, Callable[[], Known]]] = {
    # y[i] = x[32 * i], 2^25 floats: each lane's 4 bytes lie in a sector of their own, so 8 D / 4 bytes are read.
    "stride_32": ("coalescing", lambda: made(
        (2**30 + 2**27) / PEAK / 0.9, Work(2**27, 2**27), ("strided", 1.0, {
            **COPY, "read_bytes": 2**30, "written_bytes": 2**27, "load_sectors": 32 * WARPS,
            "store_sectors": 4 * WARPS}))),
    # The same with a stride of 2: 8 sectors a request, of which half is used.
    "stride_2": ("coalescing", lambda: made(
        (2**28 + 2**27) / PEAK / 0.9, Work(2**27, 2**27), ("strided", 1.0, {
            **COPY, "read_bytes": 2**28, "written_bytes": 2**27, "load_sectors": 8 * WARPS, "load_bytes_a_sector": 16,
            "store_bytes_a_sector": 32, "store_sectors": 4 * WARPS}))),
    # The same, where nobody counted the bytes used: packs of 8 bytes that are read twice look the same.
    "stride_2_or_twice": ("bytes", lambda: made(
        (2**28 + 2**27) / PEAK / 0.9, Work(2**27, 2**27), ("strided", 1.0, {
            **COPY, "read_bytes": 2**28, "written_bytes": 2**27, "load_sectors": 8 * WARPS,
            "store_sectors": 4 * WARPS}))),
    # Each thread reads 8 neighbouring floats one by one: every request touches 32 sectors, which the L1 has kept.
    "eight_a_thread": ("coalescing", lambda: made(SLOW, COPY_WORK, ("mask", 1.0, scaled(
        4, load_sectors=32 * 4 * WARPS, store_sectors=4 * 4 * WARPS, **IDLE)))),
    # Two divisions of 64 bits for each element, one element a thread.
    "divisions": ("instructions", lambda: made(620e-6, COPY_WORK, ("bias_add", 1.0, scaled(
        4, load_sectors=16 * WARPS, store_sectors=16 * WARPS, grid=WARPS / 2, issue_active=0.9, dram_active=0.4,
        instructions=_issued(0.9, 620e-6), pipe_alu=0.8, pipe_xu=0.4)))),
    # A pipe that is full, while schedulers issue in 40% of cycles.
    "full_pipe": ("instructions", lambda: made(SLOW, COPY_WORK, ("gelu", 1.0, {
        **COPY, **IDLE, "issue_active": 0.4, "pipe_xu": 0.9}))),
    # An array of four floats a thread: stored and loaded once, beside a pack loaded and a pack stored.
    "local_array": ("local_memory", lambda: made(491e-6, COPY_WORK, ("rotate", 1.0, {
        **COPY, "local_bytes": 16, "local_sectors": 2 * D / 32, "dram_active": 0.5, "issue_active": 0.3,
        "stall_long_scoreboard": 0.6}))),
    # 168 registers and blocks of 256 threads: one block fits, so 8 of 64 warps with 512 bytes each.
    "registers": ("occupancy", lambda: made(SLOW, COPY_WORK, ("tiled", 1.0, {
        **COPY, **IDLE, "registers": 168, "occupancy": 0.125, "occupancy_limit": 0.125, "blocks_by_registers": 1}))),
    # 32 blocks of one warp are all that a multiprocessor holds, and 4 bytes a lane are few for 32 warps.
    "small_blocks": ("occupancy", lambda: made(SLOW, COPY_WORK, ("short", 1.0, scaled(
        4, load_sectors=16 * WARPS, store_sectors=16 * WARPS, **IDLE, grid=4 * WARPS, block=32, occupancy=0.4,
        occupancy_limit=0.5, blocks_by_registers=128, blocks_by_warps=64)))),
    # One float a lane: 128 bytes a warp, 7.4 KB in flight.
    "narrow": ("in_flight", lambda: made(SLOW, COPY_WORK, ("naive", 1.0, scaled(
        4, load_sectors=16 * WARPS, store_sectors=16 * WARPS, **IDLE, grid=WARPS / 2)))),
    "one_block": ("waves", lambda: made(60 * BEST, COPY_WORK, ("single", 1.0, {
        **COPY, "dram_active": 0.02, "issue_active": 0.01, "grid": 1, "block": 1024, "occupancy": 0.5}))),
    # 277 blocks, 132 x 2 at a time: 1.05 waves.
    "tail": ("waves", lambda: made(SLOW, COPY_WORK, ("tailed", 1.0, {
        **COPY, **IDLE, "grid": 277, "block": 1024, "occupancy": 0.55, "blocks_by_warps": 2}))),
    # 140 blocks at once: 8 multiprocessors have two.
    "uneven": ("waves", lambda: made(SLOW, COPY_WORK, ("uneven", 1.0, {
        **COPY, **IDLE, "grid": 140, "block": 1024, "occupancy": 0.52, "blocks_by_warps": 2}))),
    # Lanes that read a column of a 32 x 32 tile: 32 cycles in place of one.
    "conflicts": ("conflicts", lambda: made(SLOW, COPY_WORK, ("transpose", 1.0, {
        **COPY, **IDLE, "shared_wavefronts": 0.5 * 132 * CLOCK * SLOW,
        "shared_conflicts": 0.5 * 31 / 33 * 132 * CLOCK * SLOW}))),
    # Rows whose packs begin 4 bytes behind a sector: 17 sectors for 512 bytes.
    "misaligned": ("partial_sectors", lambda: made(BEST / 0.9, COPY_WORK, ("shifted", 1.0, {
        **COPY, "load_sectors": 17 * WARPS}))),
    "misaligned_floats": ("partial_sectors", lambda: made(BEST / 0.85, COPY_WORK, ("shifted", 1.0, scaled(
        4, load_sectors=20 * WARPS, store_sectors=16 * WARPS)))),
    "unfused": ("second_kernel", _unfused),
    # One kernel that reads its input a second time, from memory.
    "two_passes": ("bytes", lambda: made(3 * D / PEAK, COPY_WORK, ("twice", 1.0, {
        **COPY, "read_bytes": 2 * D, "load_requests": 2 * WARPS, "load_sectors": 32 * WARPS}))),
    "barriers": ("waits", lambda: made(SLOW, COPY_WORK, ("reduce", 1.0, {**COPY, **IDLE, "stall_barrier": 0.6}))),
    # 16 kernels of 2 us each, in a row.
    "many_launches": ("launches", lambda: made(64e-6, Work(2**25, 2**25), *(
        (f"part{i}", 1 / 16, {**COPY, "read_bytes": 2**21, "written_bytes": 2**21}) for i in range(16)))),
    # Two passes by packs of 16 bytes, and nearly no stores (cross entropy), or narrow ones (a quantiser).
    "two_passes_no_stores": ("bytes", lambda: made(4 * D / PEAK / 0.93, Work(2 * D, 2**17), ("loss", 1.0, {
        **COPY, "read_bytes": 4 * D, "written_bytes": 2**17, "load_requests": 4 * WARPS, "load_sectors": 64 * WARPS,
        "store_requests": 4096, "store_sectors": 4096}))),
    "two_passes_wide": ("bytes", lambda: made(4 * D / PEAK / 0.93, Work(2 * D, 2**17), ("loss", 1.0, {
        **COPY, "read_bytes": 4 * D, "written_bytes": 2**17, "load_requests": 2 * WARPS, "load_sectors": 64 * WARPS,
        "store_requests": 4096, "store_sectors": 4096}), device=replace(DEVICE, compute_capability="10.0"))),
    "two_passes_narrow_stores": ("bytes", lambda: made((2 * D + D / 4) / PEAK / 0.93, Work(D, D // 4), (
        "quantise", 1.0, {**COPY, "read_bytes": 2 * D, "written_bytes": D / 4, "load_requests": 2 * WARPS,
                          "load_sectors": 32 * WARPS, "store_requests": WARPS, "store_sectors": 4 * WARPS}))),
    # Grids with a tail, while memory is busy all the same: the second pass is what costs.
    "two_passes_tail": ("bytes", lambda: made(3 * D / PEAK, COPY_WORK, ("twice", 1.0, {
        **COPY, "read_bytes": 2 * D, "load_requests": 2 * WARPS, "load_sectors": 32 * WARPS, "grid": 132 * 8 * 1.25}))),
    "two_passes_conflicts": ("bytes", lambda: made(3 * D / PEAK, COPY_WORK, ("twice", 1.0, {
        **COPY, "read_bytes": 2 * D, "load_requests": 2 * WARPS, "load_sectors": 32 * WARPS,
        "shared_wavefronts": 0.4 * 132 * CLOCK * 3 * D / PEAK, "shared_conflicts": 0.3 * 132 * CLOCK * 3 * D / PEAK}))),
    # It reads twice as much as it needs; the L2 keeps what it writes, so that the sum is right.
    "reads_behind_writes": ("bytes", lambda: made(2**25 / PEAK / 0.9, Work(2**24, 2**24), ("twice", 1.0, {
        **COPY, "read_bytes": 2**25, "written_bytes": 0, "grid": 2**12, "load_requests": 2**16,
        "load_sectors": 2**20, "store_requests": 2**15, "store_sectors": 2**19}))),
    # A matrix product by tensor cores: it reads its inputs again and again from memory that has time for it.
    "product": ("instructions", lambda: made(2 * 8192**3 / 8e14 / 0.86, PRODUCT_WORK, (
        "product", 1.0, PRODUCT), limits=WITH_COMPUTE)),
    # A thread's load gives the address of its next one.
    "dependent": ("in_flight", lambda: made(SLOW, COPY_WORK, ("chase", 1.0, {
        **COPY, **IDLE, "stall_long_scoreboard": 0.8}))),
    # One stage of 8 KB in shared memory, where 15 KB must be under way.
    "shallow_pipeline": ("occupancy", lambda: made(SLOW, COPY_WORK, ("staged", 1.0, {
        **BY_TMA, **IDLE, "shared_bytes": 8 * 1024, "read_bytes": D, "written_bytes": D}))),
    # Counts of 64 words: 32 lanes of each warp change them in place, and loads are few beside these.
    "atomics": ("atomics", lambda: made(10 * BEST, Work(D, 256), ("buckets", 1.0, {
        **COPY, **IDLE, "written_bytes": 256, "store_requests": 0, "store_sectors": 0, "issue_active": 0.02,
        "stall_long_scoreboard": 0.9, "atomic_requests": 4 * WARPS, "atomic_sectors_mean": 1e5,
        "atomic_sectors_most": 4e6}))),
    # 30 barriers for each load: their pipe is full, and warps wait for each other.
    "many_barriers": ("barriers", lambda: made(4 * BEST, COPY_WORK, ("steps", 1.0, {
        **COPY, **IDLE, "issue_active": 0.4, "stall_barrier": 0.4, "pipe_adu": 0.93}))),
    # Branches alone fill the same pipe.
    "branches": ("instructions", lambda: made(4 * BEST, COPY_WORK, ("switch", 1.0, {
        **COPY, **IDLE, "issue_active": 0.4, "stall_barrier": 0.02, "pipe_adu": 0.93}))),
    # Loops of different lengths in the lanes of a warp: the mean is half of the longest.
    "divergent": ("divergence", lambda: made(4 * BEST, COPY_WORK, ("loops", 1.0, {
        **COPY, **IDLE, "issue_active": 0.9, "pipe_fma": 0.6, "active_lanes": 16.5}))),
    # log(1.0 + exp(x)) with constants of C++, in a case of float32.
    "doubles": ("double", lambda: made(4 * BEST, COPY_WORK, ("softplus", 1.0, {
        **COPY, **IDLE, "issue_active": 0.45, "pipe_fp64": 0.9, "pipe_xu": 0.5}))),
    "lsu_pipe": ("instructions", lambda: made(SLOW, COPY_WORK, ("scalar", 1.0, scaled(
        4, load_sectors=16 * WARPS, store_sectors=16 * WARPS, **IDLE, stall_lg_throttle=0.6, pipe_lsu=0.85)))),
}
ASIDES: dict[str, tuple[str, Callable[[], Known]]] = {
    "short": ("launches", lambda: made(1.5e-6, Work(2**19, 2**19))),
    "host": ("host", lambda: made(10e-6, Work(2**24, 2**24), call_time=30e-6)),
    "host_at_the_ceiling": ("host", lambda: made(BEST / 0.98, COPY_WORK, call_time=2 * BEST)),
}
HEALTHY: dict[str, Callable[[], Known]] = {
    "tuned": lambda: made(BEST / 0.98, COPY_WORK, ("tuned", 1.0, COPY)),
    # As many blocks as run at a time, a quarter of the warps, and several loads of each under way.
    "persistent": lambda: made(BEST / 0.97, COPY_WORK, ("resident", 1.0, {
        **COPY, "grid": 132 * 2, "occupancy": 0.25, "occupancy_limit": 0.25, "registers": 120,
        "blocks_by_registers": 2})),
    # A bias beside x: half of the requests are for 16 sectors that the L1 has, so sectors are twice the bytes of x.
    "bias_in_l1": lambda: made(BEST / 0.9, COPY_WORK, ("bias_add", 1.0, {
        **COPY, "load_requests": 2 * WARPS, "load_sectors": 32 * WARPS, "dram_active": 0.85})),
    # The L2 still has some of what is read, and keeps some of what is written.
    "resident": lambda: made(BEST / 0.97, COPY_WORK, ("cached", 1.0, {
        **COPY, "read_bytes": 0.8 * D, "written_bytes": 0.7 * D})),
    # 200 KB of a multiprocessor's reads are under way, by a block of four warps, none of them by loads of registers.
    "tma_sum": lambda: made(2 * D / PEAK / 0.91, Work(2 * D, 4 * 132), ("tma_sum", 1.0, BY_TMA)),
    "tma_copy": lambda: made(BEST / 0.9, COPY_WORK, ("tma_copy", 1.0, {
        **BY_TMA, "read_bytes": D, "written_bytes": D, "dram_active": 0.76})),
    # A few scattered loads beside, of the shape of a table.
    "tma_and_scattered": lambda: made(BEST / 0.88, COPY_WORK, ("tma_copy", 1.0, {
        **COPY, "load_requests": 2000, "load_sectors": 32 * 2000, "store_requests": 500, "store_sectors": 500})),
    # 90% of the ceiling is 76% of the datasheet's peak.
    "persistent_by_the_datasheet": lambda: made(BEST / 0.9, COPY_WORK, ("resident", 1.0, {
        **COPY, "grid": 132 * 2, "occupancy": 0.25, "occupancy_limit": 0.25, "registers": 120,
        "blocks_by_registers": 2, "dram_active": 0.76})),
    "packs_of_32_bytes": lambda: made(BEST / 0.93, COPY_WORK, ("wide", 1.0, {
        **COPY, "load_requests": WARPS / 2, "store_requests": WARPS / 2}),
        device=replace(DEVICE, compute_capability="10.0")),
    # 16 MB to 16 MB, of which next to nothing comes from memory.
    "in_the_l2": lambda: made(2**25 / PEAK / 0.85, Work(2**24, 2**24), ("copy", 1.0, {
        **COPY, "grid": 2**12, "read_bytes": 1e5, "written_bytes": 2e5, "load_requests": 2**15, "load_sectors": 2**19,
        "store_requests": 2**15, "store_sectors": 2**19, "dram_active": 0.03, "stall_long_scoreboard": 0.6})),
    "few_warps_in_the_l2": lambda: made(2**25 / PEAK / 0.85, Work(2**24, 2**24), ("copy", 1.0, {
        **COPY, "occupancy": 0.3, "grid": 2**12, "read_bytes": 1e5, "written_bytes": 2e5, "load_requests": 2**15,
        "load_sectors": 2**19, "store_requests": 2**15, "store_sectors": 2**19, "dram_active": 0.03})),
    "without_counters": lambda: made(BEST / 0.98, COPY_WORK, facts=(KernelFacts("tuned", 128, 0, 0),)),
}
# fmt: on


@pytest.fixture
def faulty() -> Callable[[str], Known]:
    """What is known of the kernel with that fault."""
    return lambda name: {**FAULTS, **ASIDES}[name][1]()


@pytest.fixture
def asides() -> dict[str, str]:
    """The rule that tells each fault that is no verdict."""
    return {name: rule for name, (rule, _) in ASIDES.items()}


@pytest.fixture
def right() -> dict[str, str]:
    """The rule that is right for each fault."""
    return {name: rule for name, (rule, _) in FAULTS.items()}


@pytest.fixture
def healthy() -> dict[str, Callable[[], Known]]:
    return HEALTHY


@pytest.fixture
def copying() -> Callable[..., Known]:
    """copying(time=..., **values): a copy that takes twice its ceiling, with its counters changed."""

    def make(time: float = SLOW, work: Work = COPY_WORK, **values: float) -> Known:
        return made(time, work, ("copy", 1.0, {**COPY, **values}))

    return make


@pytest.fixture
def uncounted() -> Callable[..., Known]:
    """uncounted(time=..., **fields): a copy of which no profiler has told anything."""

    def make(time: float = SLOW, work: Work = COPY_WORK, **fields: Any) -> Known:
        return made(time, work, **fields)

    return make


@pytest.fixture
def unfused() -> Callable[..., Known]:
    """unfused(*siblings): five kernels in a row that a profiler without counters saw, beside other variants."""

    def make(*siblings: Sibling) -> Known:
        known = _unfused()
        bare = tuple(
            replace(one, profile=replace(one.profile, values=(("time", one.seconds),))) for one in known.kernels
        )
        return replace(known, kernels=bare, tool="torch", siblings=siblings)

    return make


@pytest.fixture
def siblings() -> tuple[Sibling, ...]:
    return (Sibling("tuned", BEST), Sibling("eager", SLOW))
