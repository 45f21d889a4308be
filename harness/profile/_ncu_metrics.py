"""Nsight Compute's names of what `harness.model.counters` lists."""

from __future__ import annotations

from collections.abc import Mapping

from harness.model import PIPE, STALL

# One pass over a kernel, so that it runs only once, with the caches as its predecessor left them.
BYTES = ("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
SECTIONS = ("LaunchStats", "Occupancy", "SchedulerStats", "WarpStateStats", "ComputeWorkloadAnalysis")
"""Sections, of which each architecture has what it can count, for what isn't in DETAILS: stall reasons and pipes."""

_PERCENT, _PLAIN = 0.01, 1.0
_NAMES: dict[str, tuple[float, tuple[str, ...]]] = {
    "time": (1e-9, ("gpu__time_duration.sum",)),
    "grid": (_PLAIN, ("launch__grid_size",)),
    "block": (_PLAIN, ("launch__block_size",)),
    "registers": (_PLAIN, ("launch__registers_per_thread",)),
    "shared_bytes": (_PLAIN, ("launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic")),
    "waves": (_PLAIN, ("launch__waves_per_multiprocessor",)),
    "occupancy": (_PERCENT, ("sm__warps_active.avg.pct_of_peak_sustained_active",)),
    "occupancy_limit": (_PERCENT, ("sm__maximum_warps_per_active_cycle_pct",)),
    "blocks_by_registers": (_PLAIN, ("launch__occupancy_limit_registers",)),
    "blocks_by_shared": (_PLAIN, ("launch__occupancy_limit_shared_mem",)),
    "blocks_by_warps": (_PLAIN, ("launch__occupancy_limit_warps",)),
    "blocks_by_slots": (_PLAIN, ("launch__occupancy_limit_blocks",)),
    "read_bytes": (_PLAIN, ("dram__bytes_read.sum",)),
    "written_bytes": (_PLAIN, ("dram__bytes_write.sum",)),
    "l2_hit": (_PERCENT, ("lts__t_sector_hit_rate.pct",)),
    "load_requests": (_PLAIN, ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",)),
    "load_sectors": (_PLAIN, ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",)),
    "store_requests": (_PLAIN, ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",)),
    "store_sectors": (_PLAIN, ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",)),
    "load_bytes_a_sector": (_PLAIN, ("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio",)),
    "store_bytes_a_sector": (_PLAIN, ("smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio",)),
    "atomic_requests": (
        _PLAIN,
        ("l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum", "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum"),
    ),
    "atomic_sectors_mean": (_PLAIN, ("lts__t_sectors_op_atom.avg", "lts__t_sectors_op_red.avg")),
    "atomic_sectors_most": (_PLAIN, ("lts__t_sectors_op_atom.max", "lts__t_sectors_op_red.max")),
    "local_sectors": (
        _PLAIN,
        ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum"),
    ),
    "shared_wavefronts": (_PLAIN, ("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",)),
    "shared_conflicts": (_PLAIN, ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",)),
    "instructions": (_PLAIN, ("smsp__inst_executed.sum",)),
    "active_lanes": (_PLAIN, ("smsp__thread_inst_executed_per_inst_executed.ratio",)),
    "issue_active": (_PERCENT, ("smsp__issue_active.avg.pct_of_peak_sustained_active",)),
    "dram_active": (_PERCENT, ("dram__throughput.avg.pct_of_peak_sustained_elapsed",)),
    "clock": (_PLAIN, ("smsp__cycles_elapsed.avg.per_second",)),
}
_OF_SECTIONS = ("launch__", "sm__maximum_warps")
DETAILS = tuple(
    name
    for _, names in _NAMES.values()
    for name in names
    if name not in BYTES and not name.startswith(_OF_SECTIONS)
)  # fmt: skip
_STALLS = ("smsp__average_warps_issue_stalled_", "_per_issue_active.ratio")
_PIPES = ("sm__inst_executed_pipe_", ".avg.pct_of_peak_sustained_active")


_READ = {name for _, names in _NAMES.values() for name in names}


def is_read(name: str) -> bool:
    """Whether a figure of Nsight Compute, by its name, is one that `translated` takes."""
    return name in _READ or any(name.startswith(start) and name.endswith(end) for start, end in (_STALLS, _PIPES))


def translated(found: Mapping[str, float]) -> dict[str, float]:
    """The figures of a kernel by our names, in SI units, from the figures by Nsight Compute's names in its base units.

    Base units are ns, bytes, Hz and percent. What wasn't counted is left out.
    """
    values = {
        name: scale * sum(found[part] for part in parts)
        for name, (scale, parts) in _NAMES.items()
        if all(part in found for part in parts)
    }
    if values.get("l2_hit", 0.0) > 1:
        del values["l2_hit"]  # hits and requests of a tiny kernel are counted in passes that differ
    values |= {PIPE + name: _PERCENT * value for name, value in _between(found, *_PIPES).items()}
    stalls = _between(found, *_STALLS)
    # Each is warps in that state for each instruction issued. Their sum is all warps, so a share of it is one of time.
    if every := sum(stalls.values()):
        values |= {STALL + name: value / every for name, value in stalls.items()}
    return values


def _between(found: Mapping[str, float], start: str, end: str) -> dict[str, float]:
    """The figures whose names have this start and this end, by what stands between."""
    return {
        name[len(start) : -len(end)]: value
        for name, value in found.items()
        if name.startswith(start) and name.endswith(end)
    }
