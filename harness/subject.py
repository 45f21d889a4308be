"""The subject of metrics: what is known of a case, and of the cases that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self

from harness.model import Bound, Case, KernelFacts, Limits, Measurement, Result, Traffic, Work
from harness.model.limits import State
from harness.stats import median_interval


@dataclass(frozen=True, slots=True)
class Subject:
    """What the metrics of a case are computed from: one process of the case, or all.

    time, call_time: seconds a call. interval: bounds of `time` at 95%. medians: the time of each process, in seconds.
    done: the work, with its operations in the types in which the variant does them. bound: of the machine's limits the
    one by which the work takes longest if it is done so, with the seconds that it then takes at best.
    facts: figures that the variant reported. settled: whether the machine was under load for seconds, so that the work
    is compared with the settled peaks of compute, not with the burst peaks. over: the case that speed-ups compare with.
    alone: the same case on one device, or itself if it is on one and the run has it on several. beside: every case of
    the same group, by its variant.
    """

    time: float | None
    work: Work | None = None
    done: Work | None = None
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
    variant: str = ""
    over: Subject | None = None
    alone: Subject | None = None
    # The cases of a group refer to each other here, so that a comparison or a repr would have no end.
    beside: Mapping[str, Subject] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, found: Result | Measurement, limits: Limits | None) -> Self:
        """The subject of all processes of a case, or of one. Metrics that compare it with another case are None."""
        measurements = (found,) if isinstance(found, Measurement) else found.measurements
        time = found.time
        subject = cls(
            time=time,
            work=found.work,
            done=found.work_done,
            traffic=found.traffic,
            call_time=found.call_time,
            interval=interval(measurements) if time is not None else None,
            medians=tuple(m.time for m in measurements if m.time is not None),
            facts=dict(found.facts),
            kernels=tuple(kernel for m in measurements for kernel in m.kernels),
            settled=found.timer == "steady",
            world=found.case.world,
            variant=found.case.variant,
        )
        bound = limits.bound(subject.done, subject.state, subject.world) if limits and subject.done else None
        return replace(subject, limits=limits, bound=bound)

    def against(self, over: Subject | None) -> Self:
        """The same subject, compared with another variant."""
        return replace(self, over=over)

    @property
    def state(self) -> State:
        """Which peaks of compute the subject is compared with."""
        return "settled" if self.settled else "burst"

    @property
    def best(self) -> float | None:
        """Seconds that the work of the case takes on this machine at best."""
        return self.bound.seconds if self.bound else None

    @property
    def bound_by_compute(self) -> bool:
        """Whether the machine's rate of operations decides how long the work takes at best."""
        return self.bound is not None and self.bound.limit not in ("memory", "link")

    @property
    def beyond_memory(self) -> bool:
        """Whether the work is compared with a measured peak of compute or a measured link, not with memory alone."""
        if self.limits is None or self.done is None:
            return False
        rates = [self.limits.rate(kind, self.state) for kind, count in self.done.flops if count]
        return bool(rates and all(rates)) or bool(self.done.sent and self.limits.link(self.world))


def subjects(results: Iterable[Result], limits: Limits | None) -> dict[str, Subject]:
    """The subject of each case by its id. `alone` is the same case on one device, where that was measured too."""

    # Most variants of a case do the same work alike, and finding its bound takes a search through all streams.
    @cache
    def bound(work: Work | None, state: State, world: int) -> Bound | None:
        return limits.bound(work, state, world) if limits and work else None

    cases: dict[str, Case] = {}
    found: dict[str, Subject] = {}
    groups: dict[str, dict[str, Subject]] = {}
    for result in results:
        case, key = result.case, result.case.id
        cases[key] = case
        subject = Subject.of(result, None)
        known = bound(subject.done, subject.state, subject.world)
        group = groups.setdefault(case.group, {})
        found[key] = group[case.variant] = replace(subject, limits=limits, bound=known, beside=group)
    on_one = {key: replace(case, world=1).id if case.world > 1 else key for key, case in cases.items()}
    scaled = {on_one[key] for key, case in cases.items() if case.world > 1}
    return {
        key: replace(one, alone=found.get(on_one[key])) if on_one[key] in scaled else one for key, one in found.items()
    }


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
