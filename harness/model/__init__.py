"""The records that flow through the harness: frozen, in SI units (seconds, bytes), with derived properties only."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

SCHEMA = 1

Status = Literal["ok", "wrong", "unsupported", "skipped", "out_of_memory", "crashed", "timeout"]
Cache = Literal["cold", "hot"]
FAILED: frozenset[Status] = frozenset({"wrong", "crashed", "timeout"})


@dataclass(frozen=True, slots=True)
class Case:
    """One variant of one op at one shape and dtype on one kind of device: what a single number is about.

    `shape` is the op's symbols with their sizes, in the op's order.
    """

    op: str
    variant: str
    dtype: str
    shape: tuple[tuple[str, int], ...]
    device: str = "cuda"
    cache: Cache = "cold"

    @property
    def shape_text(self) -> str:
        """The shape as it stands in ids and tables: 'N96-C64-H112-W112'."""
        return "-".join(f"{symbol}{size}" for symbol, size in self.shape) or "scalar"

    @property
    def id(self) -> str:
        """Readable key of the case everywhere: NVTX range, table row, filter, resume, gate."""
        return "/".join((self.op, self.variant, *self._rest))

    @property
    def group(self) -> str:
        """The id without the variant: cases of one group do the same job and are compared with each other."""
        return "/".join((self.op, *self._rest))

    @property
    def symbols(self) -> dict[str, int]:
        return dict(self.shape)

    @property
    def _rest(self) -> tuple[str, ...]:
        return (self.dtype, self.shape_text, *(("hot",) if self.cache == "hot" else ()))


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does. Bytes through memory, floating-point operations, and `items` of what users count."""

    read: int
    written: int
    flops: int = 0
    items: int = 0
    item: str = ""

    @property
    def moved(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to sample: until the 95% interval of the median is `precision` (relative) wide, or `max_time` seconds.

    `timeout` is the wall-clock limit in seconds for the whole case, compiling and checking included.
    """

    precision: float = 0.002
    max_time: float = 2.0
    timeout: float = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """A case to run, how to time it, and how many processes (ranks) it takes."""

    case: Case
    timing: Timing = Timing()
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Warning:
    """Something a reader of the number must know. `code` is stable, `advice` says what to do next."""

    code: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Conditions:
    """State of the device at one moment; None where the device doesn't tell. `reasons` limit the clocks."""

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the compiler made of one kernel; sizes in bytes, per thread except shared (static, per block)."""

    name: str
    registers: int
    local: int
    shared: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One case measured by one process, or why it wasn't.

    samples: device seconds per call, each a mean over the calls of one timed batch.
    call_samples: host seconds per call issued back to back without a graph.
    timer: 'graph', 'launch' (call by call, L2 flushed), 'host' (a monotonic clock).
    work: the op's essential traffic; traffic: what this variant really moves.
    stopped: 'interval' or 'time', whichever ended the sampling.
    phases: wall-clock seconds of each phase (compile, check, sample, ...).
    process: index of the fresh process that measured it (`--repeat`).
    """

    case: Case
    status: Status
    samples: tuple[float, ...] = ()
    call_samples: tuple[float, ...] = ()
    timer: str = ""
    work: Work | None = None
    traffic: Work | None = None
    warnings: tuple[Warning, ...] = ()
    error: str | None = None
    process: int = 0
    stopped: str = ""
    batch: int = 0
    sets: int = 0
    seed: int = 0
    before: Conditions | None = None
    after: Conditions | None = None
    kernels: tuple[KernelFacts, ...] = ()
    phases: tuple[tuple[str, float], ...] = ()

    @property
    def time(self) -> float | None:
        """Median device seconds per call; None if the case wasn't timed."""
        return statistics.median(self.samples) if self.status == "ok" and self.samples else None

    @property
    def call_time(self) -> float | None:
        """Median seconds per call as a host loop sees it."""
        return statistics.median(self.call_samples) if self.call_samples else None


@dataclass(frozen=True, slots=True)
class Result:
    """A case with the measurements of all its processes. One process is the usual case."""

    case: Case
    measurements: tuple[Measurement, ...]

    @property
    def status(self) -> Status:
        """'ok' only if every process was; otherwise the first other status."""
        return next((m.status for m in self.measurements if m.status != "ok"), "ok")

    @property
    def error(self) -> str | None:
        return next((m.error for m in self.measurements if m.error), None)

    @property
    def work(self) -> Work | None:
        return next((m.work for m in self.measurements if m.work), None)

    @property
    def traffic(self) -> Work | None:
        return next((m.traffic for m in self.measurements if m.traffic), None)

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """Warnings of all processes, each code once."""
        return tuple({w.code: w for m in self.measurements for w in m.warnings}.values())

    @property
    def medians(self) -> tuple[float, ...]:
        """Device seconds per call, one median a process."""
        return tuple(m.time for m in self.measurements if m.time is not None)

    @property
    def time(self) -> float | None:
        """Median over processes of the median device seconds per call."""
        return statistics.median(self.medians) if self.status == "ok" and self.medians else None

    @property
    def call_time(self) -> float | None:
        times = [m.call_time for m in self.measurements if m.call_time is not None]
        return statistics.median(times) if times else None

    @property
    def bandwidth(self) -> float | None:
        """Effective bandwidth: essential bytes a second."""
        return self.work.moved / self.time if self.work and self.work.moved and self.time else None

    @property
    def moved_bandwidth(self) -> float | None:
        """Bytes a second that the variant itself moves."""
        return self.traffic.moved / self.time if self.traffic and self.traffic.moved and self.time else None


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts about one device and the host it is in. `fingerprint` tells two machines apart."""

    kind: str
    name: str
    fingerprint: str
    memory_bytes: int
    cache_bytes: int
    driver: str = ""
    compute_capability: str = ""
    multiprocessors: int = 0
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    power_limit_w: float | None = None
    cpu: str = ""
    cpu_count: int = 0
    host_memory_bytes: int = 0
    system: str = ""
    versions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamPoint:
    """Seconds that one plain stream of `read` + `written` bytes took, done in the way named."""

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
class Ceilings:
    """What the memory can do: every plain stream that was tried at the start of a run, and some again at its end.

    `is_copy` marks the library copies (cudaMemcpy device to device), whose best bandwidth is the peak.
    """

    points: tuple[StreamPoint, ...]
    end: tuple[StreamPoint, ...] = ()

    @property
    def best(self) -> tuple[StreamPoint, ...]:
        """The fastest way at each mix and size, sorted by mix, then by size."""
        fastest: dict[tuple[float, int], StreamPoint] = {}
        for point in self.points:
            key = (point.read_share, point.moved)
            if key not in fastest or point.seconds < fastest[key].seconds:
                fastest[key] = point
        return tuple(fastest[key] for key in sorted(fastest))

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

    def seconds(self, work: Work) -> float | None:
        """Time of a plain stream of the same bytes, mix and size: the floor under any kernel that does `work`.

        Interpolates log(time) over log(bytes) within a mix, then time over the share of reads between mixes,
        since the time of reads and of writes adds up. None where nothing was measured or nothing is moved.
        """
        if not work.moved:
            return None
        mixes: dict[float, list[StreamPoint]] = defaultdict(list)
        for point in self.best:
            mixes[point.read_share].append(point)
        if not mixes:
            return None
        share = work.read / work.moved
        below = max((m for m in mixes if m <= share + 0.005), default=min(mixes))
        above = min((m for m in mixes if m >= share - 0.005), default=max(mixes))
        low, high = (_stream_seconds(mixes[m], work.moved) for m in (below, above))
        weight = (share - below) / (above - below) if above > below else 0.0
        return low + min(1.0, max(0.0, weight)) * (high - low)


def _stream_seconds(points: Sequence[StreamPoint], moved: int) -> float:
    """Seconds at `moved` bytes from points sorted by size: a power law between neighbours and past the ends."""
    if len(points) == 1:
        return points[0].seconds * moved / points[0].moved
    right = next((i for i, p in enumerate(points) if p.moved >= moved), len(points) - 1)
    a, b = points[max(0, right - 1)], points[max(1, right)]
    slope = math.log(b.seconds / a.seconds) / math.log(b.moved / a.moved)
    if not points[0].moved <= moved <= points[-1].moved:
        # Past the ends noise must not make more bytes cheaper, nor cost more than in proportion.
        slope = min(1.0, max(0.0, slope))
    return a.seconds * float((moved / a.moved) ** slope)


FloorMetric = Literal["speedup", "bandwidth", "of_peak", "of_ceiling"]
"""Of these more is better."""
Metric = Literal[FloorMetric, "time", "traffic"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a text says of a variant, to print beside what was measured; never a result of ours.

    value is in SI units of the metric: a ratio, B/s, a share, seconds, or a ratio of bytes for 'traffic'; None where
    the text says only that the variant is faster, or moves less.
    `where` is a glob on case groups (op/dtype/shape) that the claim speaks of.
    """

    row: str
    variant: str
    metric: Metric
    value: float | None
    hardware: str
    over: str = ""
    where: str = "*"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A floor that the gate holds a variant to: `metric` of at least `value`.

    `where` is a glob on case groups (op/dtype/shape). Of several floors of a metric, the first that matches counts.
    """

    variant: str
    metric: FloorMetric
    value: float
    where: str = "*"


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure over an expression of the op's symbols, in the place of the usual ones.

    label: of its axis. by: a symbol whose sizes are told apart; without one, variants are. littles_law: the expression
    is bytes being read on a multiprocessor at a time, so Little's law is drawn.
    """

    over: str
    label: str
    by: str = ""
    littles_law: bool = False

    @property
    def of_variants(self) -> bool:
        """Whether nothing but variants is told apart: each has a line, and may stop somewhere on it."""
        return not self.by and not self.littles_law


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario file asked for, as stored with a run, so that a report needs no other file."""

    name: str
    title: str
    op: str
    cases: tuple[str, ...]
    shows: str = ""
    source: str = ""
    rows: tuple[str, ...] = ()
    baseline: str = "eager"
    tags: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    claims: tuple[Claim, ...] = ()
    curve: Curve | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """Everything about a run but its results: what `run.json` holds.

    source: hash over kernels, ops and harness files; plan: hash over cases and timing. Both guard `--resume`.
    """

    name: str
    machine: Machine
    scenarios: tuple[Scenario, ...]
    command: tuple[str, ...]
    started: str
    source: str
    plan: str
    jobs: int
    repeat: int = 1
    schema: int = SCHEMA
    finished: str | None = None
    ceilings: Ceilings | None = None
    git_revision: str = ""
    git_dirty: bool = False
    harness_version: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as read from its folder. `losses` says what couldn't be read."""

    header: Header
    measurements: tuple[Measurement, ...]
    losses: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        """One result a case, in the order in which the cases were first measured."""
        by_id: dict[str, list[Measurement]] = defaultdict(list)
        for measurement in self.measurements:
            by_id[measurement.case.id].append(measurement)
        return tuple(Result(group[0].case, tuple(group)) for group in by_id.values())

    @property
    def ceilings(self) -> Ceilings | None:
        return self.header.ceilings

    def of_peak(self, result: Result) -> float | None:
        """Effective bandwidth over the library copy's."""
        peak = self.ceilings.peak if self.ceilings else None
        return result.bandwidth / peak if result.bandwidth and peak else None

    def of_ceiling(self, result: Result) -> float | None:
        """Time of a plain stream of the same bytes over the measured time: 1 is the speed of light."""
        floor = self.ceilings.seconds(result.work) if self.ceilings and result.work else None
        return floor / result.time if floor and result.time else None


@dataclass(frozen=True, slots=True)
class Difference:
    """One case in two runs. `ratio` is the reference's time over the run's: above 1 the run is faster.

    low, high: 95% interval of the ratio. `verdict`: 'faster', 'slower', '~' (the intervals overlap), or
    'missing' where either run has no time for the case (`note` says which and why).
    """

    case: Case
    reference: float | None
    run: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Literal["faster", "slower", "~", "missing"]
    samples: int = 0
    note: str = ""


def by_group(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Results that do the same job, keyed by the id without the variant, in order."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.case.group].append(result)
    return dict(groups)
