"""What a device did over time: which kernels and families took it, and why it was idle in between."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from harness.families import FAMILIES, family
from harness.intervals import Interval, between, common, length, merged, parts
from harness.profile._trace import Span, Trace

SHORT_GAP = 10e-6
"""Seconds. A shorter gap between two kernels is about what a launch takes; in a longer one the GPU had no work."""
_MEMORY = ("Memset", "Memcpy")
"""How CUPTI's names of what isn't a kernel begin."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All launches of one kernel, or all calls of one CPU operator.

    seconds: the sum of their durations; of an operator, without the operators that it calls. share: of the devices'
    time. Kernels that run at the same time share it, so that all shares and the idle share add up to 1. figures: of a
    launch, the mean.
    """

    name: str
    family: str
    count: int
    seconds: float
    share: float
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FamilyTime:
    """All kernels of one family: their launches, the sum of their durations, and their share of the devices' time."""

    name: str
    count: int
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps in which a device was idle: how many, and the sum of their lengths in seconds."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What the devices of a trace did from the first kernel's start to the last one's end.

    on_gpu: whether the kernels are a GPU's; otherwise they are operators on the CPU, and the CPU is the device.
    devices: how many. window: seconds from the first start to the last end. busy: seconds in which something ran, of
    all devices together. host: the idle seconds of all devices in which the host was inside operators of
    torch or calls of the CUDA runtime; 0 where the CPU is the device. gap: median seconds of a gap, 0 if there is none.
    short, long: gaps below and from SHORT_GAP. kernels, families: the longest first.
    """

    on_gpu: bool
    devices: int
    window: float
    busy: float
    host: float
    gap: float
    short: Gaps
    long: Gaps
    kernels: tuple[KernelTime, ...]
    families: tuple[FamilyTime, ...]

    @property
    def time(self) -> float:
        """Seconds of all devices together, busy or not."""
        return self.window * self.devices

    @property
    def idle(self) -> float:
        """Seconds in which nothing ran, of all devices together."""
        return max(0.0, self.time - self.busy)

    @property
    def idle_share(self) -> float:
        """The share of the devices' time in which nothing ran."""
        return self.idle / self.time if self.time else 0.0

    @property
    def host_share(self) -> float:
        """The share of the devices' time in which nothing ran since the host was still preparing work."""
        return self.host / self.time if self.time else 0.0

    @property
    def count(self) -> int:
        """How often anything was launched, or an operator was called."""
        return sum(kernel.count for kernel in self.kernels)


def of_operators(trace: Trace, operators: Collection[str]) -> float | None:
    """The share of the devices' time of the kernels that these operators of torch launched.

    None where the trace doesn't tell of any kernel which operator launched it.
    """
    if not any(span.operator for span in trace.spans):
        return None
    places = _by_place(trace.spans)
    pieces = [piece for spans in places.values() for piece in zip(spans, parts(_intervals(spans)), strict=True)]
    time = (max(span.end for span in trace.spans) - min(span.start for span in trace.spans)) * len(places)
    return sum(part for span, part in pieces if span.operator in operators) / time if time else None


def _by_place(spans: Iterable[Span]) -> dict[str, list[Span]]:
    places: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        places[span.place].append(span)
    return places


def _intervals(spans: Iterable[Span]) -> list[Interval]:
    return [(span.start, span.end) for span in spans]


def calls(trace: Trace, count: int) -> list[Trace]:
    """The parts of a trace of one GPU that are of one call each; none where calls can't be told apart.

    count: of calls. They can be told apart if each of them launched the same kernels. Copies and memsets don't tell,
    where there are kernels: CUPTI misses some of a graph's. One of them is of the call whose kernel comes next, or of
    the last call.
    """
    spans = sorted(trace.spans, key=lambda span: span.start)
    kernels = [span for span in spans if not span.name.startswith(_MEMORY)] or spans
    size = len(kernels) // count
    parts = [kernels[first : first + size] for first in range(0, size * count, size)] if size else []
    names = {tuple(sorted(span.name for span in part)) for part in parts}
    if not trace.on_gpu or len(_by_place(spans)) > 1 or size * count != len(kernels) or len(names) != 1:
        return []
    ends = [part[-1].start for part in parts[:-1]]
    found: list[list[Span]] = [[] for _ in parts]
    for span in spans:
        found[bisect_left(ends, span.start)].append(span)
    return [replace(trace, spans=tuple(part)) for part in found]


def timeline(trace: Trace) -> Timeline:
    """The sums over a trace, which has at least one span."""
    window = (min(span.start for span in trace.spans), max(span.end for span in trace.spans))
    places = _by_place(trace.spans)
    host = merged(trace.host) if trace.on_gpu else []
    busy, waited, gaps = 0.0, 0.0, list[Interval]()
    pieces: list[tuple[Span, float]] = []
    for spans in places.values():
        intervals = _intervals(spans)
        covered = merged(intervals)
        free = between(covered, window)
        busy += length(covered)
        waited += common(free, host)
        gaps += free
        pieces += zip(spans, parts(intervals), strict=True)
    lengths = [end - start for start, end in gaps]
    kernels = _kernels(pieces, (window[1] - window[0]) * len(places))
    return Timeline(
        on_gpu=trace.on_gpu,
        devices=len(places),
        window=window[1] - window[0],
        busy=busy,
        host=waited,
        gap=statistics.median(lengths) if lengths else 0.0,
        short=_gaps(seconds for seconds in lengths if seconds < SHORT_GAP),
        long=_gaps(seconds for seconds in lengths if seconds >= SHORT_GAP),
        kernels=kernels,
        families=_families(kernels),
    )


def _gaps(lengths: Iterable[float]) -> Gaps:
    found = list(lengths)
    return Gaps(len(found), sum(found))


def _kernels(pieces: Sequence[tuple[Span, float]], time: float) -> tuple[KernelTime, ...]:
    """One entry for each name. pieces: spans with their parts of the devices' time in seconds. time: all of it."""
    named: dict[str, list[tuple[Span, float]]] = defaultdict(list)
    for span, part in pieces:
        named[span.name].append((span, part))
    found = [
        KernelTime(
            name=name,
            family=family(name),
            count=len({span.call for span, _ in own}),
            seconds=sum(span.end - span.start for span, _ in own),
            share=sum(part for _, part in own) / time if time else 0.0,
            figures=_means([span for span, _ in own]),
        )
        for name, own in named.items()
    ]
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds))


def _means(spans: Sequence[Span]) -> tuple[tuple[str, float], ...]:
    values: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        for name, value in span.figures:
            values[name].append(value)
    return tuple((name, statistics.fmean(found)) for name, found in values.items())


def _families(kernels: Sequence[KernelTime]) -> tuple[FamilyTime, ...]:
    found = []
    for name in FAMILIES:
        if own := [kernel for kernel in kernels if kernel.family == name]:
            counts = sum(kernel.count for kernel in own)
            seconds = sum(kernel.seconds for kernel in own)
            found.append(FamilyTime(name, counts, seconds, sum(kernel.share for kernel in own)))
    return tuple(sorted(found, key=lambda family: -family.share))
