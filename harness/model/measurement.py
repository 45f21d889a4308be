"""What was measured of a case: by one process (Measurement), by all processes (Result), by a tool (Attachment)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from harness.model.case import Case, Status
from harness.model.machine import Conditions

Timer = Literal["", "graph", "launch", "steady", "host"]


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of an op has to do, whichever variant does it.

    read, written: bytes through the memory of a device. flops: floating-point (or integer) operations by the type that
    they are done in, e.g. ('float16', 2 * M * N * K). sent: bytes that a device sends over its link. items: what users
    count of it, e.g. images; `item` is its name. again: the bytes that are read a second time, which the
    last-level cache may still have.
    """

    read: int = 0
    written: int = 0
    flops: tuple[tuple[str, int], ...] = ()
    sent: int = 0
    items: int = 0
    item: str = ""
    again: int = 0

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def operations(self) -> int:
        """Operations of all types."""
        return sum(count for _, count in self.flops)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one call of a variant reads and writes by its own account. Hardware counters check it."""

    read: int
    written: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Warning:
    """Something that a reader of the time must know. code: its short name, which doesn't change. advice: what to do."""

    code: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the compiler made of one kernel; sizes in bytes, per thread except shared (static, per block)."""

    name: str
    registers: int
    local: int
    shared: int


@dataclass(frozen=True, slots=True)
class Code:
    """The code that made a number: a hash over the op's files, its kernels, and the code that measures."""

    op: str
    digest: str


@dataclass(frozen=True)
class Measurement:
    """One case measured by one process, or why it wasn't.

    samples: device seconds per call, each a mean over the calls of one timed batch.
    call_samples: host seconds per call issued back to back without a graph.
    timer: 'graph', 'launch' (call by call, L2 flushed), 'steady' (blocks of calls without a synchronisation inside),
    'host' (a monotonic clock).
    work: what the op has to do; traffic: bytes that this variant moves, by its own account.
    arithmetic: the work's operations by the types in which this variant does them, where these aren't the work's.
    facts: named figures that the variant reports of itself; each name is a metric.
    stopped: 'interval' or 'time', whichever ended the sampling.
    phases: wall-clock seconds of each phase (compile, check, sample, ...).
    process: index of the fresh process that measured it (`--repeat`).
    """

    case: Case
    status: Status
    samples: tuple[float, ...] = ()
    call_samples: tuple[float, ...] = ()
    timer: Timer = ""
    work: Work | None = None
    traffic: Traffic | None = None
    facts: tuple[tuple[str, float], ...] = ()
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
    code: Code | None = None
    arithmetic: tuple[tuple[str, int], ...] = ()

    @property
    def work_done(self) -> Work | None:
        """The work, with its operations in the types in which this variant does them: its limit is computed from it."""
        return replace(self.work, flops=self.arithmetic) if self.work and self.arithmetic else self.work

    @cached_property
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
    def timer(self) -> Timer:
        """How the case was timed, by the first process that timed it."""
        return next((m.timer for m in self.measurements if m.timer), "")

    @property
    def work(self) -> Work | None:
        return next((m.work for m in self.measurements if m.work), None)

    @property
    def work_done(self) -> Work | None:
        """The work as this variant does it; see `Measurement.work_done`."""
        return next((m.work_done for m in self.measurements if m.work), None)

    @property
    def traffic(self) -> Traffic | None:
        return next((m.traffic for m in self.measurements if m.traffic), None)

    @property
    def facts(self) -> tuple[tuple[str, float], ...]:
        """The median over processes of each figure that the variant reported."""
        values: dict[str, list[float]] = defaultdict(list)
        for measurement in self.measurements:
            for name, value in measurement.facts:
                values[name].append(value)
        return tuple((name, statistics.median(found)) for name, found in values.items())

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
        medians = self.medians
        return statistics.median(medians) if self.status == "ok" and medians else None

    @property
    def call_time(self) -> float | None:
        times = [m.call_time for m in self.measurements if m.call_time is not None]
        return statistics.median(times) if times else None


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a tool saw of one kernel of a case.

    launches: how often one call of the case launches it. values: figures by name, in SI units, the mean of a launch;
    `counters.py` lists the names.
    """

    name: str
    launches: float
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RangeProfile:
    """What a tool saw of the NVTX ranges of one name that lie in ranges of the same names.

    depth: how many ranges lie around it. The range around it is the last one ahead of it in the list whose depth is
    smaller by 1. count: ranges in one call of the case. values: figures by name. time: seconds of the host in these
    ranges, a call. median: seconds of the host in one range. kernels, kernel_time: how many kernels were launched in
    them, and the seconds that these took, a call.
    """

    name: str
    depth: int
    count: float
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a profiler or an audit found about a case: figures of a call, in SI units, and files of the run's folder.

    kernels: what it saw of each kernel, in the order of their first launch. series: lists of figures by name, such as
    the losses of a training, step by step. ranges: what it saw of NVTX ranges, those around others first. notes:
    sentences about what it couldn't see.
    """

    case: str
    tool: str
    values: tuple[tuple[str, float], ...] = ()
    files: tuple[str, ...] = ()
    kernels: tuple[KernelProfile, ...] = ()
    series: tuple[tuple[str, tuple[float, ...]], ...] = ()
    ranges: tuple[RangeProfile, ...] = ()
    notes: tuple[str, ...] = ()


def by_group(results: Iterable[Result]) -> dict[str, list[Result]]:
    """The results of each group of cases (the id without the variant), in order."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for outcome in results:
        groups[outcome.case.group].append(outcome)
    return dict(groups)
