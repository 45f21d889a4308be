"""The only list of metrics: the name of each, its unit, which way is better, how it is computed and explained.

Tables, CSV, JSON, plots, claims, floors, the gate, the scenario's schema and "how to read the tables" iterate over it.
Metrics that every op may have stand here. An op adds its own metrics where it is defined: `add(Metric(...))` for a
metric that is computed, `fact(...)` for one whose value only the variant knows, `found(...)` for one that a tool tells.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from harness import rates, units
from harness.errors import UsageError, can_be_written, nearest, shown
from harness.rates import over_variant
from harness.stats import range_over_median
from harness.subject import Subject, interval, subjects
from harness.units import Unit

__all__ = [
    "METRICS",
    "Metric",
    "Subject",
    "add",
    "fact",
    "found",
    "interval",
    "named",
    "over_variant",
    "subjects",
    "told",
    "values",
]

Better = Literal["higher", "lower", ""]
Relative = Literal["", "variant", "world"]
KEPT = "kept_bytes"
"""The fact that each variant has whose outputs a training step keeps."""
ABOVE_CEILING = 1.02
"""From this share of the ceiling on, the time or the ceiling is wrong: ceilings are no more exact than that."""
IMPOSSIBLE = 1.2
"""Above this share of the ceiling a case has no time: no error of a ceiling is as large."""
ALWAYS = 9
"""The rank of columns that every table shows, however narrow the console is."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: a figure that every case may have.

    name: its key in YAML, CSV and JSON. title: what it is called in a sentence and on an axis. unit: how it is written.
    value: computes it in SI units; None where it isn't known. hint: how to read it, one or two sentences.
    better: which way is better; '' if neither is. A floor needs a metric that is better when higher; a claim needs one
    where either way is better. relative: 'variant' if it compares with another variant (the baseline unless a scenario
    names another), 'world' if it compares with one device. said: the text of a claim without a value, such as 'faster';
    '' if a claim needs a value.
    Tables: `head` is the head of its column, with {unit} and {over}; '' for no column. keep: its rank where a table is
    too wide, ALWAYS for a column that stays. shown: whether a table shows it for a subject.
    Plots and tables of sizes against variants show one metric: the known one with the highest rank.
    figure, sweep: its ranks for the two; 0 for never. drawn: whether a plot with this subject may show it. limit: the
    metric that a plot draws as the limit of this one.
    of_limits: it compares with limits of the machine, which have to be measured. reported: variants give the value, by
    `ctx.report`. by_count: it is computed from what ops declare, so no measurement can contradict it. by_trace: it is
    found in a trace of torch's profiler. by_counters: it is computed from hardware counters. attached: computes it from
    the figures that tools found of a case, by their names ('<tool>.<name>', and the names of `report/tool_figures.py`),
    and from the case's time in seconds; None if no tool tells it.
    """

    name: str
    title: str
    unit: Unit
    value: Callable[[Subject], float | None]
    hint: str = ""
    better: Better = ""
    relative: Relative = ""
    said: str = ""
    head: str = ""
    keep: int = 0
    shown: Callable[[Subject], bool] = lambda _: True
    figure: int = 0
    drawn: Callable[[Subject], bool] = lambda _: True
    sweep: int = 0
    limit: str = ""
    of_limits: bool = False
    reported: bool = False
    by_count: bool = False
    by_trace: bool = False
    by_counters: bool = False
    attached: Callable[[Mapping[str, float], float | None], float | None] | None = None

    @property
    def is_of_hardware(self) -> bool:
        """Whether it is a time or a rate, which depends on the machine as much as on the code."""
        return not self.relative and self.unit in _OF_HARDWARE

    def written(self, value: float) -> str:
        """A value with its unit."""
        return self.unit.write(value)


_OF_HARDWARE = (units.SECONDS, units.BANDWIDTH, units.OPERATIONS, units.ITEMS, units.TOKENS)
METRICS: dict[str, Metric] = {}
"""Every metric by name, in the order of tables."""
_DECLARED: dict[str, str] = {}
"""Where each metric is declared: its file and line."""
_FUNCTIONS = ("value", "shown", "drawn", "attached")
"""Fields that can't be compared: a module that is loaded twice has functions of its own each time."""


def add(metric: Metric, *, after: str = "") -> Metric:
    """Add a metric to the list, and give it back.

    after: the metric that it stands right after in tables; without one it stands last. A metric that is there already,
    with the same meaning, stays as it is. Raises UsageError if the name has another meaning, and if there is no metric
    named `after`, or a field is of another type.
    """
    where = _caller()
    _refuse_types(where, metric, after)
    there = METRICS.get(metric.name)
    if there is not None:
        if _meaning(there) != _meaning(metric):
            differ = ", ".join(key for key, value in _meaning(metric).items() if _meaning(there)[key] != value)
            raise UsageError(
                f"{where}: there is a metric named '{metric.name}' already, '{there.title}', and its {differ} "
                f"{'differs' if ', ' not in differ else 'differ'} ({_DECLARED[metric.name]})",
                "choose another name, or give both the same meaning",
            )
        return there
    names = list(METRICS)
    if after and after not in METRICS:
        raise UsageError(f"{where}: '{metric.name}' can't stand after {shown(after)}, no metric", nearest(after, names))
    place = names.index(after) + 1 if after else len(names)
    following = {name: METRICS.pop(name) for name in names[place:]}
    METRICS[metric.name] = metric
    METRICS.update(following)
    _DECLARED[metric.name] = where
    return metric


def fact(  # noqa: PLR0913 - what a reader of a table needs to know
    name: str,
    title: str,
    unit: Unit,
    hint: str,
    better: Better = "",
    *,
    head: str | None = None,
    keep: int = 3,
    after: str = "",
) -> Metric:
    """Add a metric whose value variants report, by `ctx.report(name, value)`.

    head: the column's, the title unless told; '' for no column. The rest is as in `Metric` and `add`. Several ops
    may add the same one. Raises UsageError as `add` does.
    """
    made = _fact(name, title, unit, hint, better)
    return add(replace(made, head=title if head is None else head, keep=keep), after=after)


def found(  # noqa: PLR0913, PLR0917 - as above
    name: str,
    title: str,
    unit: Unit,
    hint: str,
    better: Better,
    attached: Callable[[Mapping[str, float], float | None], float | None],
    *,
    by_trace: bool = False,
    after: str = "",
) -> Metric:
    """Add a metric that tools tell, not a variant. attached: as in `Metric`. Raises UsageError as `add` does."""
    made = replace(_fact(name, title, unit, hint, better), attached=attached, by_trace=by_trace)
    return add(made, after=after)


def named(name: str) -> Metric:
    """The metric of that name. If the op that added it isn't loaded, a metric without a unit."""
    return METRICS.get(name) or _fact(name, name, units.PLAIN, "reported by the variant itself")


def _fact(name: str, title: str, unit: Unit, hint: str, better: Better = "") -> Metric:
    return Metric(name, title, unit, lambda s: s.facts.get(name), hint, better, head=title, keep=3, reported=True)


def _meaning(metric: Metric) -> dict[str, object]:
    """All of a metric that can be compared. A unit counts by how it writes: ops make units of their own."""
    known = {field.name: getattr(metric, field.name) for field in fields(Metric) if field.name not in _FUNCTIONS}
    return known | {"unit": metric.unit.write(0.0)}


_TYPES = {"str": str, "int": int, "bool": bool, "Unit": Unit, "Better": str, "Relative": str}
"""What a field may be, by the type that it is declared with. Fields of all other types are functions."""


def _refuse_types(where: str, metric: object, after: object) -> None:
    """Raise UsageError for what is no metric, and for a field that is of another type than declared."""
    if not isinstance(metric, Metric):
        raise UsageError(f"{where}: {shown(metric)} isn't a metric", "metrics.add takes a Metric(...)")
    if not isinstance(after, str):
        raise UsageError(f"{where}: after is {shown(after)}, which isn't text", "it takes the name of a metric")
    for field in fields(Metric):
        value, kind = getattr(metric, field.name), str(field.type)
        is_one = type(value) is _TYPES[kind] if kind in _TYPES else callable(value)
        if kind in ("Better", "Relative"):
            is_one = is_one and value in get_args(Better if kind == "Better" else Relative)
        is_one = is_one and (not isinstance(value, str) or can_be_written(value))
        if not is_one and not (value is None and kind.endswith("None")):
            advice = f"it is declared as {kind}: see harness.metrics.Metric"
            raise UsageError(f"{where}: {field.name} of metric {shown(metric.name)} is {shown(value)}", advice)


def _caller() -> str:
    """The file and line that declares a metric: outside of this module, but for the metrics that stand here."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename == __file__ and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def floors() -> dict[str, Metric]:
    """Metrics for which `expect` may give a least value."""
    return {name: metric for name, metric in METRICS.items() if metric.better == "higher"}


def claimed() -> dict[str, Metric]:
    """Metrics that a claim may be of."""
    return {name: metric for name, metric in METRICS.items() if metric.better}


def values(subject: Subject) -> dict[str, float | None]:
    """Metrics of a subject by name, in SI units: the common metrics, and the rest where it is known."""
    own = {name: metric.value(subject) for name, metric in METRICS.items() if not metric.reported}
    return {name: own[name] for name in own if own[name] is not None or name in COMMON} | dict(subject.facts)


def told(attached: Mapping[str, float], time: float | None) -> dict[str, float]:
    """Figures that tools tell of a case, by the names of their metrics, sorted.

    attached: what tools found of a call, as '<tool>.<name>'. time: seconds of a call, without a tool.
    """
    tell = {name: metric.attached(attached, time) for name, metric in sorted(METRICS.items()) if metric.attached}
    return {name: value for name, value in tell.items() if value is not None}


# ---- The list, in the order of tables.
# fmt: off
for _metric in (
    Metric("time", "time", units.SECONDS, lambda s: s.time, "median device time of a call", "lower",
           head="time ({unit})", keep=ALWAYS, figure=1, sweep=1),
    Metric("low", "lower bound of the time", units.SECONDS, lambda s: s.interval[0] if s.interval else None),
    Metric("high", "upper bound of the time", units.SECONDS, lambda s: s.interval[1] if s.interval else None),
    Metric("call_time", "time a call, as a host loop sees it", units.SECONDS, lambda s: s.call_time,
           "median time of a call that a loop on the host issues, without a graph; where it is longer than the device "
           "time, the device waits for the host. Shown for lists of tensors, and where most cases wait",
           "lower", head="call ({unit})", keep=8),
    Metric("bandwidth", "effective bandwidth", units.BANDWIDTH, rates.bandwidth,
           "effective bandwidth: the bytes that the op has to move, over the time", "higher",
           head="{unit}", keep=ALWAYS, figure=3, sweep=3, limit="ceiling_bandwidth"),
    Metric("moved_bandwidth", "moved bandwidth", units.BANDWIDTH, rates.moved_bandwidth,
           "the bytes that the variant itself moves, over the time; shown where it moves more than the op has to",
           head="moved {unit}", keep=3, shown=lambda s: bool(s.traffic and s.work and s.traffic.moved > s.work.moved)),
    Metric("flops", "operations a second", units.OPERATIONS, rates.flops,
           "the operations that the op has to do, over the time", "higher",
           head="{unit}", keep=8, shown=lambda s: s.beyond_memory, figure=4, drawn=lambda s: s.bound_by_compute,
           limit="ceiling_flops"),
    Metric("intensity", "operations a byte", units.PLAIN, rates.intensity,
           "operations that the op has to do for each byte that it has to move",
           head="FLOP/B", keep=2, shown=lambda s: s.beyond_memory),
    Metric("items", "items a second", units.ITEMS, rates.items, "what users count of the op, over the time", "higher",
           head="{unit}", keep=7, figure=2, sweep=2, limit="ideal_items"),
    Metric("of_peak", "share of the copy peak", units.SHARE, rates.of_peak,
           "effective bandwidth over the bandwidth of the library copy (bytes read and written both count)", "higher",
           head="of peak", keep=5, of_limits=True),
    Metric("of_ceiling", "share of the ceiling", units.SHARE, rates.of_ceiling,
           "time that this machine needs for the same work at best, over the time; at 100% nothing is left to gain. "
           "The time at best is the longest of: a plain stream of the same bytes, mix and size; the operations at the "
           "peak of compute; the bytes sent over the link", "higher",
           head="of ceiling", keep=ALWAYS, sweep=4, of_limits=True),
    Metric("speedup", "speed-up", units.RATIO, rates.speedup,
           "time of the variant named, over the time of this one; above 1 is faster", "higher",
           relative="variant", said="faster", head="vs {over}", keep=ALWAYS),
    Metric("traffic", "traffic", units.RATIO, rates.traffic,
           "bytes that the variant moves by its own account, over the bytes that another variant moves", "lower",
           relative="variant", said="less", by_count=True),
    Metric("kept", "bytes that a training step keeps", units.RATIO, over_variant(KEPT),
           "bytes of masks that a training step keeps for its backward, over the bytes of another variant", "lower",
           relative="variant", said="less", by_count=True),
    Metric("efficiency", "scaling efficiency", units.SHARE, rates.efficiency,
           "items a second of all devices, over items a second of one device times the number of devices", "higher",
           relative="world", head="efficiency", keep=8),
    Metric("efficiency_low", "lower bound of the scaling efficiency", units.SHARE, rates.efficiency_bound(0),
           "scaling efficiency at the ends of the 95% intervals of both times that are worst for it; at the other ends "
           "it is efficiency high", relative="world", head="efficiency low", keep=4),
    Metric("efficiency_high", "upper bound of the scaling efficiency", units.SHARE, rates.efficiency_bound(1),
           "the upper bound that belongs to efficiency low", relative="world", head="efficiency high", keep=4),
    Metric("ideal_items", "ideal", units.ITEMS, rates.ideal_items),
    Metric("ceiling_bandwidth", "ceiling", units.BANDWIDTH, rates.ceiling_bandwidth),
    Metric("ceiling_flops", "ceiling", units.OPERATIONS, rates.ceiling_flops),
    Metric("noise", "noise", units.FINE_SHARE,
           lambda s: (s.interval[1] - s.interval[0]) / s.time if s.interval and s.time else None,
           "width of the 95% interval of the time, over the time", head="noise", keep=4),
    Metric("process_range", "range of the processes' medians, over their median", units.FINE_SHARE,
           lambda s: range_over_median(s.medians) if s.time and len(s.medians) > 1 else None),
    Metric("read_bytes", "bytes that have to be read", units.BYTES, lambda s: s.work.read if s.work else None),
    Metric("written_bytes", "bytes that have to be written", units.BYTES, lambda s: s.work.written if s.work else None),
    Metric("sent_bytes", "bytes that have to be sent", units.BYTES, lambda s: s.work.sent or None if s.work else None),
    Metric("moved_bytes", "bytes the variant moves", units.BYTES, lambda s: s.traffic.moved if s.traffic else None),
    Metric("registers", "registers", units.COUNT, rates.kernels_most(lambda kernel: kernel.registers),
           "registers of a thread of our kernel; where a variant has several kernels, the largest number counts",
           head="registers", keep=2),
    Metric("local_bytes", "local bytes", units.COUNT, rates.kernels_most(lambda kernel: kernel.local),
           "bytes of local memory of a thread of our kernel, where it has any",
           head="local bytes", keep=6, shown=lambda s: any(kernel.local for kernel in s.kernels)),
    replace(_fact(KEPT, "bytes kept", units.BYTES,
                  "bytes of masks that a training step keeps for its backward, by count from the declared tensors"),
            by_count=True),
):
    add(_metric)
COMMON = frozenset(METRICS)
"""Metrics that every case has, be they known or not; tables of all kinds have a place for them."""
for _metric in (
    Metric("compute_busy", "compute throughput", units.SHARE, lambda s: s.facts.get("compute_busy"),
           "the largest share that a pipe of a multiprocessor, or its schedulers, have of what they can do",
           by_counters=True, attached=rates.compute_busy, reported=True),
    Metric("arithmetic", "compute throughput", units.RATIO, over_variant("compute_busy"),
           "the compute throughput over the compute throughput of another variant", "lower",
           relative="variant", said="less", by_counters=True),
    Metric("warp_instructions", "instructions of warps", units.COUNT, lambda s: s.facts.get("warp_instructions"),
           "instructions that warps execute in a call",
           by_counters=True, attached=rates.sum_of_counters("instructions"), reported=True),
    Metric("instructions", "instructions", units.RATIO, over_variant("warp_instructions"),
           "instructions that warps execute in a call, over the same number of another variant", "lower",
           relative="variant", said="less", by_counters=True),
    Metric("warp_accesses", "memory instructions of warps", units.COUNT, lambda s: s.facts.get("warp_accesses"),
           "loads and stores of global memory that warps execute in a call",
           by_counters=True, attached=rates.sum_of_counters("load_requests", "store_requests"), reported=True),
    Metric("accesses", "memory instructions", units.RATIO, over_variant("warp_accesses"),
           "loads and stores of global memory that warps execute in a call, over the same number of another variant",
           "lower", relative="variant", said="less", by_counters=True),
):
    add(_metric)
# fmt: on
COUNTED = frozenset(METRICS) - COMMON
"""Metrics of hardware counters, which cases have that Nsight Compute watched."""
