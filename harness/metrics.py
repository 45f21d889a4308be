"""The only list of metrics: the name of each, its unit, which way is better, how it is computed and explained.

Tables, CSV, JSON, plots, claims, floors, the gate, the scenario's schema and "how to read the tables" iterate over it.
A new metric is one more entry: `add(Metric(...))`. A metric whose value only the variant knows is `fact(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, Self

from harness import units
from harness.errors import UsageError
from harness.model import Bound, KernelFacts, Limits, Measurement, Result, Traffic, Work
from harness.model.limits import State
from harness.stats import median_interval, range_over_median
from harness.units import Unit

Better = Literal["higher", "lower", ""]
Relative = Literal["", "variant", "world"]
KEPT = "kept_bytes"
"""The fact that each variant has whose outputs a training step keeps."""
SNR, MEAN_ERROR, LARGEST_ERROR = "snr", "mean_error", "largest_error"
"""Facts of a variant whose result has fewer bits than what it stands for: how far off it is."""
TOKENS = "tokens_a_call"
"""The fact that a variant has whose items are sequences of tokens: how many tokens a call has."""
PEAK_MEMORY, ENERGY, UNSCALE, LOSS = "peak_memory", "energy", "unscale_share", "training_loss"
"""Facts of whole steps of a model, and of its inference. The last two are told by tools, not by a variant."""
ALWAYS = 9
"""The rank of columns that every table shows, however narrow the console is."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What the metrics of a case are computed from: one process of the case, or all.

    time, call_time: seconds a call. interval: bounds of `time` at 95%. medians: the time of each process, in seconds.
    bound: of the machine's limits the one by which the work takes longest, with the seconds that it then takes at best.
    facts: figures that the variant reported. settled: whether the machine was under load for seconds, so that the work
    is compared with the settled peaks of compute, not with the burst peaks. over: the case that speed-ups compare with.
    alone: the same case on one device.
    """

    time: float | None
    work: Work | None = None
    traffic: Traffic | None = None
    limits: Limits | None = None
    bound: Bound | None = None
    call_time: float | None = None
    interval: tuple[float, float] | None = None
    medians: tuple[float, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    kernels: tuple[KernelFacts, ...] = ()
    settled: bool = False
    world: int = 1
    over: Subject | None = None
    alone: Subject | None = None

    @classmethod
    def of(cls, found: Result | Measurement, limits: Limits | None) -> Self:
        """The subject of all processes of a case, or of one. Metrics that compare it with another case are None."""
        measurements = (found,) if isinstance(found, Measurement) else found.measurements
        time = found.time
        subject = cls(
            time=time,
            work=found.work,
            traffic=found.traffic,
            call_time=found.call_time,
            interval=interval(measurements) if time is not None else None,
            medians=tuple(m.time for m in measurements if m.time is not None),
            facts=dict(found.facts),
            kernels=tuple(kernel for m in measurements for kernel in m.kernels),
            settled=found.timer == "steady",
            world=found.case.world,
        )
        bound = limits.bound(found.work, subject.state, subject.world) if limits and found.work else None
        return replace(subject, limits=limits, bound=bound)

    def against(self, over: Subject | None) -> Self:
        """The same subject, compared with another variant."""
        return replace(self, over=over)

    @property
    def state(self) -> State:
        """Which peaks of compute the subject is compared with."""
        return "settled" if self.settled else "burst"

    @property
    def floor(self) -> float | None:
        """Seconds that the work of the case takes on this machine at best."""
        return self.bound.seconds if self.bound else None

    @property
    def bound_by_compute(self) -> bool:
        """Whether the machine's rate of operations decides how long the work takes at best."""
        return self.bound is not None and self.bound.limit not in ("memory", "link")

    @property
    def beyond_memory(self) -> bool:
        """Whether the work is compared with a measured peak of compute or a measured link, not with memory alone."""
        if self.limits is None or self.work is None:
            return False
        rates = [self.limits.rate(kind, self.state) for kind, count in self.work.flops if count]
        return bool(rates and all(rates)) or bool(self.work.sent and self.limits.link(self.world))


def subjects(results: Iterable[Result], limits: Limits | None) -> dict[str, Subject]:
    """The subject of each case by its id. `alone` is the same case on one device, where that was measured too."""

    # Variants of one case do the same work, and finding its bound takes a search through all streams.
    @cache
    def bound(work: Work | None, state: State, world: int) -> Bound | None:
        return limits.bound(work, state, world) if limits and work else None

    cases = {result.case.id: result.case for result in results}
    found: dict[str, Subject] = {}
    for result in results:
        subject = Subject.of(result, None)
        known = bound(subject.work, subject.state, subject.world)
        found[result.case.id] = replace(subject, limits=limits, bound=known)
    for key, case in cases.items():
        if case.world > 1:
            found[key] = replace(found[key], alone=found.get(replace(case, world=1).id))
    return found


def interval(measurements: Iterable[Measurement]) -> tuple[float, float] | None:
    """95% interval of the time of a case in seconds, from the measurements of its processes; None for too few samples.

    One process: the distribution-free interval of the median of its samples. Several processes: the smallest range
    that holds every process's median and every process's own interval. Processes differ in ways that the samples of
    one process can't show (addresses, clocks). A rank interval of their medians at 95% would take six processes. The
    range is rather too wide: less than 1 time in 20 it takes noise for a change.
    """
    timed = [m for m in measurements if m.time is not None]
    bounds = [bound for m in timed if (own := median_interval(m.samples)) for bound in own]
    if len(timed) > 1:
        bounds += [m.time for m in timed if m.time is not None]
    return (min(bounds), max(bounds)) if bounds else None


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
    Plots and tables of sizes against variants show one metric: of those that are known, the one with the highest rank.
    figure, sweep: its ranks for the two; 0 for never. drawn: whether a plot with this subject may show it. limit: the
    metric that a plot draws as the limit of this one.
    of_limits: it compares with limits of the machine, which have to be measured. reported: variants give the value, by
    `ctx.report`. by_count: it is computed from what ops declare, so no measurement can contradict it.
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

    def written(self, value: float) -> str:
        """A value with its unit."""
        return self.unit.write(value)


METRICS: dict[str, Metric] = {}
"""Every metric by name, in the order of tables."""


def add(metric: Metric) -> Metric:
    """Add a metric to the list. Raises ValueError if its name is taken."""
    if metric.name in METRICS:
        raise ValueError(f"there is a metric named '{metric.name}' already")
    METRICS[metric.name] = metric
    return metric


def fact(name: str, title: str, unit: Unit, hint: str, better: Better = "") -> Metric:
    """Add a metric whose value variants report, by `ctx.report(name, value)`.

    Several ops may add the same one. Raises UsageError if the name has another meaning already.
    """
    made = _fact(name, title, unit, hint, better)
    there = METRICS.get(name)
    if there is None:
        return add(made)
    if replace(there, value=made.value, shown=made.shown) != made:
        raise UsageError(
            f"'{name}' can't be a fact named '{title}': there is a metric of that name already, '{there.title}'",
            "choose another name, or give both the same title, unit, hint and better way",
        )
    return there


def named(name: str) -> Metric:
    """The metric of that name. If the op that added it isn't loaded, one without a unit stands for it."""
    return METRICS.get(name) or _fact(name, name, units.PLAIN, "reported by the variant itself")


def _fact(name: str, title: str, unit: Unit, hint: str, better: Better = "") -> Metric:
    return Metric(name, title, unit, lambda s: s.facts.get(name), hint, better, head=title, keep=3, reported=True)


def floors() -> dict[str, Metric]:
    """Metrics for which `expect` may give a least value."""
    return {name: metric for name, metric in METRICS.items() if metric.better == "higher"}


def claimed() -> dict[str, Metric]:
    """Metrics that a claim may be of."""
    return {name: metric for name, metric in METRICS.items() if metric.better}


def values(subject: Subject) -> dict[str, float | None]:
    """Every metric of a subject by name, in SI units; metrics that variants report only if this one reported them."""
    own = {name: metric.value(subject) for name, metric in METRICS.items() if not metric.reported}
    return own | dict(subject.facts)


# ---- How they are computed.


def _bandwidth(s: Subject) -> float | None:
    return s.work.moved / s.time if s.work and s.work.moved and s.time else None


def _moved_bandwidth(s: Subject) -> float | None:
    return s.traffic.moved / s.time if s.traffic and s.traffic.moved and s.time else None


def _ceiling_bandwidth(s: Subject) -> float | None:
    return s.work.moved / s.floor if s.work and s.work.moved and s.floor else None


def _ceiling_flops(s: Subject) -> float | None:
    return s.work.operations / s.floor if s.work and s.work.operations and s.floor else None


def _of_peak(s: Subject) -> float | None:
    bandwidth, peak = _bandwidth(s), s.limits.peak if s.limits else None
    return bandwidth / peak if bandwidth and peak else None


def _of_ceiling(s: Subject) -> float | None:
    return s.floor / s.time if s.floor and s.time else None


def _flops(s: Subject) -> float | None:
    return s.work.operations / s.time if s.work and s.work.operations and s.time else None


def _intensity(s: Subject) -> float | None:
    return s.work.operations / s.work.moved if s.work and s.work.operations and s.work.moved else None


def _items(s: Subject) -> float | None:
    return s.work.items / s.time if s.work and s.work.items and s.time else None


def _tokens(s: Subject) -> float | None:
    return s.facts[TOKENS] / s.time if TOKENS in s.facts and s.time else None


def _speedup(s: Subject) -> float | None:
    return s.over.time / s.time if s.over and s.over.time and s.time else None


def _traffic(s: Subject) -> float | None:
    over = s.over.traffic.moved if s.over and s.over.traffic else 0
    return s.traffic.moved / over if s.time and s.traffic and over else None


def _of_another(name: str) -> Callable[[Subject], float | None]:
    def ratio(s: Subject) -> float | None:
        over = s.over.facts.get(name) if s.over else None
        return s.facts[name] / over if s.time and over and name in s.facts else None

    return ratio


def _efficiency(s: Subject) -> float | None:
    items, alone = _items(s), _items(s.alone) if s.alone else None
    return items / (s.world * alone) if items and alone else None


def _kernels_most(what: Callable[[KernelFacts], int]) -> Callable[[Subject], float | None]:
    return lambda s: max(map(what, s.kernels), default=None)


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
    Metric("bandwidth", "effective bandwidth", units.BANDWIDTH, _bandwidth,
           "effective bandwidth: the bytes that the op has to move, over the time", "higher",
           head="{unit}", keep=ALWAYS, figure=3, sweep=3, limit="ceiling_bandwidth"),
    Metric("moved_bandwidth", "moved bandwidth", units.BANDWIDTH, _moved_bandwidth,
           "the bytes that the variant itself moves, over the time; shown where it moves more than the op has to",
           head="moved {unit}", keep=3, shown=lambda s: bool(s.traffic and s.work and s.traffic.moved > s.work.moved)),
    Metric("flops", "operations a second", units.OPERATIONS, _flops,
           "the operations that the op has to do, over the time", "higher",
           head="{unit}", keep=8, shown=lambda s: s.beyond_memory, figure=4, drawn=lambda s: s.bound_by_compute,
           limit="ceiling_flops"),
    Metric("intensity", "operations a byte", units.PLAIN, _intensity,
           "operations that the op has to do for each byte that it has to move",
           head="FLOP/B", keep=2, shown=lambda s: s.beyond_memory),
    Metric("items", "items a second", units.ITEMS, _items, "what users count of the op, over the time", "higher",
           head="{unit}", keep=7, figure=2, sweep=2),
    Metric("tokens", "tokens a second", units.TOKENS, _tokens, "tokens of all sequences, over the time", "higher",
           head="{unit}", keep=6, shown=lambda s: TOKENS in s.facts),
    Metric("of_peak", "share of the copy peak", units.SHARE, _of_peak,
           "effective bandwidth over that of the library copy (bytes read and written both count)", "higher",
           head="of peak", keep=5, of_limits=True),
    Metric("of_ceiling", "share of the ceiling", units.SHARE, _of_ceiling,
           "time that this machine needs for the same work at best, over the time; at 100% nothing is left to gain. "
           "The time at best is the longest of: a plain stream of the same bytes, mix and size; the operations at the "
           "peak of compute; the bytes sent over the link", "higher",
           head="of ceiling", keep=ALWAYS, sweep=4, of_limits=True),
    Metric("speedup", "speed-up", units.RATIO, _speedup,
           "time of the variant named, over the time of this one; above 1 is faster", "higher",
           relative="variant", said="faster", head="vs {over}", keep=ALWAYS),
    Metric("traffic", "traffic", units.RATIO, _traffic,
           "bytes that the variant moves by its own account, over those of another variant", "lower",
           relative="variant", said="less", by_count=True),
    Metric("kept", "bytes that a training step keeps", units.RATIO, _of_another(KEPT),
           "bytes of masks that a training step keeps for its backward, over those of another variant", "lower",
           relative="variant", said="less", by_count=True),
    Metric("memory", "peak memory of a step", units.RATIO, _of_another(PEAK_MEMORY),
           "the most bytes that tensors take during a step, over those of another variant", "lower",
           relative="variant", said="less"),
    Metric("of_expected", "share of the expected rate", units.SHARE,
           lambda s: rate / s.facts["expected_rate"] if "expected_rate" in s.facts and (rate := _items(s)) else None,
           "items a second of a pipeline, over those that are expected by the rates of its stages alone", "higher",
           head="of expected", keep=6),
    Metric("efficiency", "scaling efficiency", units.SHARE, _efficiency,
           "items a second of all devices, over those of one device times the number of devices", "higher",
           relative="world", head="efficiency", keep=8),
    Metric("ceiling_bandwidth", "ceiling", units.BANDWIDTH, _ceiling_bandwidth),
    Metric("ceiling_flops", "ceiling", units.OPERATIONS, _ceiling_flops),
    Metric("noise", "noise", units.FINE_SHARE,
           lambda s: (s.interval[1] - s.interval[0]) / s.time if s.interval and s.time else None,
           "width of the 95% interval of the time, over the time", head="noise", keep=4),
    Metric("process_range", "range of the processes' medians, over their median", units.FINE_SHARE,
           lambda s: range_over_median(s.medians) if s.time and len(s.medians) > 1 else None),
    Metric("read_bytes", "bytes that have to be read", units.BYTES, lambda s: s.work.read if s.work else None),
    Metric("written_bytes", "bytes that have to be written", units.BYTES, lambda s: s.work.written if s.work else None),
    Metric("sent_bytes", "bytes that have to be sent", units.BYTES, lambda s: s.work.sent or None if s.work else None),
    Metric("moved_bytes", "bytes the variant moves", units.BYTES, lambda s: s.traffic.moved if s.traffic else None),
    Metric("registers", "registers", units.COUNT, _kernels_most(lambda kernel: kernel.registers),
           "registers of a thread of our kernel; where a variant has several kernels, the largest number counts",
           head="registers", keep=2),
    Metric("local_bytes", "local bytes", units.COUNT, _kernels_most(lambda kernel: kernel.local),
           "bytes of local memory of a thread of our kernel, where it has any",
           head="local bytes", keep=6, shown=lambda s: any(kernel.local for kernel in s.kernels)),
    replace(_fact(TOKENS, "tokens of a call", units.COUNT, "tokens of all sequences of a call"), head=""),
    _fact(PEAK_MEMORY, "peak memory", units.BYTES, "the most bytes that tensors take during a step", "lower"),
    _fact(ENERGY, "joules an item", units.PLAIN, "energy of the GPU in steps, over the steps' items", "lower"),
    _fact(UNSCALE, "share of unscaling", units.FINE_SHARE, "unscaling's share of a step's time, by a trace", "lower"),
    _fact(LOSS, "loss of trainings", units.PLAIN, "mean loss of longer trainings, from several seeds", "lower"),
    replace(_fact(KEPT, "bytes kept", units.BYTES,
                  "bytes of masks that a training step keeps for its backward, by count from the declared tensors"),
            by_count=True),
    replace(_fact(SNR, "signal to noise", units.DECIBELS,
                  "the energy of the same result in float64, computed before anything was quantised or rounded, over "
                  "that of the error; 6 dB are a bit", "higher"), keep=6),
    _fact(MEAN_ERROR, "mean error", units.FINE_SHARE,
          "the mean absolute error, over the root mean square of the same result in float64", "lower"),
    _fact(LARGEST_ERROR, "largest error", units.FINE_SHARE,
          "the largest absolute error, over the root mean square of the same result in float64", "lower"),
):
    add(_metric)
# fmt: on
