"""What a machine can do: streams through its memory, operations a second by type, bytes over its links."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from harness.model.measurement import Work

State = Literal["burst", "settled"]
COMPUTE_KINDS = ("float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""Types of operations whose peaks can be measured: float32 without tensor cores, int8 with sums in int32."""


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """Seconds that one plain stream of `read` + `written` bytes took, done in the way named.

    is_copy: the library's copy (cudaMemcpy device to device), whose best bandwidth is the peak.
    """

    read: int
    written: int
    seconds: float
    way: str
    is_copy: bool = False

    @property
    def moved(self) -> int:
        return self.read + self.written

    @property
    def bandwidth(self) -> float:
        return self.moved / self.seconds

    @property
    def read_share(self) -> float:
        return round(self.read / self.moved, 2)


@dataclass(frozen=True, slots=True)
class ComputePoint:
    """Operations a second of one large matrix product (m x k times k x n) in the type `kind`.

    state: 'burst' (as short as kernels are) or 'settled' (after seconds of load, when power may limit the clocks).
    """

    kind: str
    m: int
    n: int
    k: int
    rate: float
    way: str
    state: State = "burst"


@dataclass(frozen=True, slots=True)
class LinkPoint:
    """Seconds in which each of `world` devices sent `sent` bytes to another one, all at the same time."""

    world: int
    sent: int
    seconds: float
    way: str

    @property
    def bandwidth(self) -> float:
        return self.sent / self.seconds


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that a part of some work takes at best, and the limit that gives them: 'memory', 'float16', 'link'."""

    limit: str
    seconds: float


@dataclass(frozen=True)
class Limits:
    """Every stream, matrix product and transfer that was tried on a machine.

    end: some of the streams, measured again at the end of the run. cache_bytes: the last-level cache of a device; 0 in
    runs that don't say it.
    """

    points: tuple[StreamPoint, ...] = ()
    end: tuple[StreamPoint, ...] = ()
    compute: tuple[ComputePoint, ...] = ()
    links: tuple[LinkPoint, ...] = ()
    cache_bytes: int = 0

    @cached_property
    def best(self) -> tuple[StreamPoint, ...]:
        """The fastest way at each mix and size, sorted by mix, then by size."""
        fastest: dict[tuple[float, int], StreamPoint] = {}
        for point in self.points:
            key = (point.read_share, point.moved)
            if key not in fastest or point.seconds < fastest[key].seconds:
                fastest[key] = point
        return tuple(fastest[key] for key in sorted(fastest))

    @cached_property
    def _mixes(self) -> dict[float, list[StreamPoint]]:
        """The fastest way at each size, sorted by size, by mix."""
        mixes: dict[float, list[StreamPoint]] = defaultdict(list)
        for point in self.best:
            mixes[point.read_share].append(point)
        return mixes

    @property
    def peak(self) -> float | None:
        """Bytes a second (read + written) of the best library copy, as bandwidthTest counts them."""
        return max((p.bandwidth for p in self.points if p.is_copy), default=None)

    @property
    def drift(self) -> float | None:
        """Median relative change in the time of a stream between start and end; positive is slower."""
        start = {(p.read, p.written, p.way): p.seconds for p in self.points}
        changes = [p.seconds / start[key] - 1 for p in self.end if (key := (p.read, p.written, p.way)) in start]
        return statistics.median(changes) if changes else None

    def rate(self, kind: str, state: State = "burst") -> float | None:
        """Operations a second of the best matrix product in a type; None where none was measured."""
        return max((p.rate for p in self.compute if p.kind == kind and p.state == state), default=None)

    def link(self, world: int) -> float | None:
        """Bytes a second that each of `world` devices can send at once; None where that wasn't measured."""
        return max((p.bandwidth for p in self.links if p.world == world), default=None)

    def seconds(self, work: Work, state: State = "burst", world: int = 1) -> float | None:
        """Seconds that `work` takes at best: the largest of its bounds. None if no limit for it was measured."""
        bound = self.bound(work, state, world)
        return bound.seconds if bound else None

    def bound(self, work: Work, state: State = "burst", world: int = 1) -> Bound | None:
        """The bound with the most seconds: it decides how long the work takes at best."""
        return max(self.bounds(work, state, world), key=lambda bound: bound.seconds, default=None)

    def bounds(self, work: Work, state: State = "burst", world: int = 1) -> Iterator[Bound]:
        """Every bound of the work that the measured limits give. Operations of several types add up.

        What is read a second time needn't come from memory as far as the last-level cache can have kept it.
        """
        streamed = self.stream_seconds(work.read - min(work.again, self.cache_bytes), work.written)
        if streamed is not None:
            yield Bound("memory", streamed)
        rates = {kind: self.rate(kind, state) for kind, count in work.flops if count}
        if rates and all(rates.values()):
            computed = sum(count / rate for kind, count in work.flops if (rate := rates.get(kind)))
            yield Bound(" + ".join(rates), computed)
        if work.sent and (bandwidth := self.link(world)):
            yield Bound("link", work.sent / bandwidth)

    def stream_seconds(self, read: int, written: int) -> float | None:
        """Time of a plain stream of the same bytes, mix and size.

        Interpolates log(time) over log(bytes) within a mix, then time over the share of reads between mixes,
        since the time of reads and of writes adds up. None where nothing was measured or nothing is moved.
        """
        moved = read + written
        if not moved:
            return None
        mixes = self._mixes
        if not mixes:
            return None
        share = read / moved
        below = max((m for m in mixes if m <= share + 0.005), default=min(mixes))
        above = min((m for m in mixes if m >= share - 0.005), default=max(mixes))
        low, high = (_at(mixes[m], moved) for m in (below, above))
        weight = (share - below) / (above - below) if above > below else 0.0
        return low + min(1.0, max(0.0, weight)) * (high - low)


def _at(points: Sequence[StreamPoint], moved: int) -> float:
    """Seconds at `moved` bytes from points sorted by size: a power law between neighbours and past the ends."""
    if len(points) == 1:
        return points[0].seconds * moved / points[0].moved
    right = next((i for i, p in enumerate(points) if p.moved >= moved), len(points) - 1)
    a, b = points[max(0, right - 1)], points[max(1, right)]
    slope = math.log(b.seconds / a.seconds) / math.log(b.moved / a.moved)
    if not points[0].moved <= moved <= points[-1].moved:
        # Past the ends, more bytes must not take less time because of noise, nor more than in proportion.
        slope = min(1.0, max(0.0, slope))
    return a.seconds * float((moved / a.moved) ** slope)
