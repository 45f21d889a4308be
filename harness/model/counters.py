"""The names of the figures that tools give of a kernel, each with its unit and its meaning.

Tools translate their own names into these, so that tables, the audit and `harness explain` know one name for one thing.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL = "stall_"
"""Begins the names of stall reasons: stall_long_scoreboard is the share of warps' time spent in it."""
PIPE = "pipe_"
"""Begins the names of pipes: pipe_alu is the share of the instructions that it could have taken."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A figure of a kernel. unit: 's', 'B', 'Hz', 'share' (of 1), or '' for a count."""

    name: str
    title: str
    unit: str
    hint: str


_EVERY = (
    Counter("time", "time", "s", "of a launch, from the kernel's start to its end"),
    Counter("grid", "blocks", "", "of a launch"),
    Counter("block", "threads a block", "", "of a launch"),
    Counter("registers", "registers", "", "that a thread has"),
    Counter("shared_bytes", "shared memory", "B", "of a block: what the code declares and what the launch adds"),
    Counter("local_bytes", "local memory", "B", "that a thread has: arrays and spilled registers"),
    Counter("waves", "waves", "", "how often the grid fills the GPU; 1.1 is a full wave and a tail of a tenth"),
    Counter("occupancy", "occupancy", "share", "warps that were resident, of what a multiprocessor can hold; the mean"),
    Counter("occupancy_limit", "occupancy at most", "share", "what registers, shared memory and blocks allow"),
    Counter("blocks_by_registers", "blocks by registers", "", "blocks of a multiprocessor that registers allow"),
    Counter("blocks_by_shared", "blocks by shared memory", "", "blocks of a multiprocessor that shared memory allows"),
    Counter("blocks_by_warps", "blocks by warps", "", "blocks of a multiprocessor that its warps allow"),
    Counter("blocks_by_slots", "blocks at most", "", "blocks that a multiprocessor can hold, however small"),
    Counter("read_bytes", "DRAM read", "B", "bytes that came from the device's memory"),
    Counter("written_bytes", "DRAM written", "B", "bytes that went to the device's memory"),
    Counter("l2_hit", "L2 hits", "share", "sectors that the L2 had, of all sectors asked of the L2"),
    Counter("load_requests", "loads", "", "requests of warps for global memory"),
    Counter("load_sectors", "sectors loaded", "", "of 32 bytes, that these requests touched"),
    Counter("store_requests", "stores", "", "requests of warps to write global memory"),
    Counter("store_sectors", "sectors stored", "", "of 32 bytes, that these requests touched"),
    Counter("load_bytes_a_sector", "bytes used a sector loaded", "B", "of its 32 bytes, the bytes that lanes read"),
    Counter("store_bytes_a_sector", "bytes used a sector stored", "B", "of its 32 bytes, the bytes that lanes wrote"),
    Counter("atomic_requests", "atomics", "", "requests of warps to change global memory in place"),
    Counter("atomic_sectors_mean", "sectors changed, mean", "", "of 32 bytes, by atomics, in a slice of the L2"),
    Counter("atomic_sectors_most", "sectors changed, most", "", "the same in the busiest slice of the L2"),
    Counter("local_sectors", "local sectors", "", "of 32 bytes, that loads and stores of local memory touched"),
    Counter("shared_wavefronts", "shared wavefronts", "", "cycles that accesses of shared memory took"),
    Counter("shared_conflicts", "bank conflicts", "", "of these cycles, the cycles that bank conflicts added"),
    Counter("instructions", "instructions", "", "that warps executed"),
    Counter("active_lanes", "active lanes", "", "of a warp's 32, that an instruction had on average"),
    Counter("issue_active", "issue active", "share", "cycles in which a scheduler issued an instruction"),
    Counter("dram_active", "DRAM active", "share", "of the bandwidth of the device's memory, at its clock"),
    Counter("clock", "clock", "Hz", "of the multiprocessors"),
)
COUNTERS = {counter.name: counter for counter in _EVERY}
"""All figures but stall reasons and pipes, of which each architecture has its own."""
