"""A run as one table. Every report reads it, so a quantity has one name and one definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from harness.compare import interval
from harness.model import Case, Result, Run, Scenario, Work, by_group
from harness.stats import range_over_median

if TYPE_CHECKING:
    import pandas as pd

Floor = Callable[[Work], float | None]


@lru_cache(maxsize=1)
def frame(run: Run) -> pd.DataFrame:
    """One row for each measured case of each scenario, those of one group together; SI units, NaN where unknown.

    Each symbol has a column of its own. `noise` is the width of the time's 95% interval (low_s to high_s) over the
    time; `process_range` is how far apart the medians of several processes lie, over their median. `ceiling_bandwidth`
    is what a plain stream of the same bytes, mix and size reaches. `speedup` is over the scenario's baseline in the
    same group. `registers` and `local_bytes` are those of the kernel that has most.

    The formats of one report share the frame; none may change it.
    """
    import pandas as pd

    return pd.DataFrame(list(_rows(run)))


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    # Variants of one group do the same work, and its floor takes a search through all streams.
    floor: Floor = cache(run.ceilings.seconds) if run.ceilings else lambda _work: None
    peak = run.ceilings.peak if run.ceilings else None
    results = {result.case.id: result for result in run.results}
    facts = {key: _times(result) | _rates(result, peak, floor) | _details(result) for key, result in results.items()}
    for scenario in run.header.scenarios:
        measured = [results[key] for key in scenario.cases if key in results]
        for group in by_group(measured).values():
            times = {result.case.variant: facts[result.case.id]["time_s"] for result in group}
            baseline = times.get(scenario.baseline)
            for result in group:
                time = times[result.case.variant]
                speedup = baseline / time if baseline and time else None
                yield _row(scenario, result.case, {"speedup": speedup} | facts[result.case.id])


def _row(scenario: Scenario, case: Case, facts: dict[str, Any]) -> dict[str, Any]:
    names = {"case": case.id, "op": case.op, "variant": case.variant, "dtype": case.dtype, "shape": case.shape_text}
    kind = {"cache": case.cache, "device": case.device}
    taken = {"scenario", *names, *kind, *facts}
    # A plug-in may call a symbol 'samples'; neither column may hide the other.
    symbols = {f"{name}_symbol" if name in taken else name: size for name, size in case.shape}
    row = {"scenario": scenario.name, **names, **symbols, **kind, **facts}
    # NaN, not None: a column that is unknown throughout still holds numbers.
    return {name: math.nan if value is None else value for name, value in row.items()}


def sizes_of(run: Run) -> dict[str, dict[str, int]]:
    """The sizes behind each text in the frame's column `shape`."""
    return {m.case.shape_text: m.case.symbols for m in run.measurements}


def by_scenario(run: Run, table: pd.DataFrame) -> Iterator[tuple[Scenario, pd.DataFrame]]:
    """Each scenario of the run with its rows of the run's frame; those without any are left out."""
    for scenario in run.header.scenarios:
        rows = table[table["scenario"] == scenario.name] if len(table) else table
        if len(rows):
            yield scenario, rows


def _times(result: Result) -> dict[str, Any]:
    time = result.time
    low, high = interval(result) or (None, None)
    return {
        "status": result.status,
        "time_s": time,
        "low_s": low,
        "high_s": high,
        "noise": (high - low) / time if time and low is not None and high is not None else None,
        "process_range": range_over_median(result.medians) if time and len(result.medians) > 1 else None,
        "call_time_s": result.call_time,
    }


def _rates(result: Result, peak: float | None, floor: Floor) -> dict[str, Any]:
    work, traffic, time, bandwidth = result.work, result.traffic, result.time, result.bandwidth
    least = floor(work) if work else None
    return {
        "read_bytes": work.read if work else None,
        "written_bytes": work.written if work else None,
        "moved_bytes": traffic.moved if traffic else None,
        "effective_bandwidth": bandwidth,
        "moved_bandwidth": result.moved_bandwidth,
        "ceiling_bandwidth": work.moved / least if work and least else None,
        "of_peak": bandwidth / peak if bandwidth and peak else None,
        "of_ceiling": least / time if least and time else None,
        "flops_per_s": work.flops / time if work and work.flops and time else None,
        "items_per_s": work.items / time if work and work.items and time else None,
        "item": work.item if work else "",
    }


def _details(result: Result) -> dict[str, Any]:
    kernels = [kernel for m in result.measurements for kernel in m.kernels]
    return {
        "processes": len(result.measurements),
        "samples": sum(len(m.samples) for m in result.measurements),
        "timer": result.measurements[0].timer,
        "stopped": result.measurements[0].stopped,
        "registers": max((k.registers for k in kernels), default=None),
        "local_bytes": max((k.local for k in kernels), default=None),
        "warnings": ";".join(warning.code for warning in result.warnings),
        "error": result.error or "",
    }
