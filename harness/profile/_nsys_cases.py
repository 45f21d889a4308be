"""Which case each kernel of a recording of Nsight Systems belongs to, and the sums of each case.

A kernel belongs to the range in which the call that launched it began, whenever the kernel itself ran. That is a range
of the thread that made the call. If this thread has none, it is a range of another thread of the process: autograd
launches the kernels of a backward pass from a thread of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from harness.devices import MARK
from harness.errors import UsageError
from harness.intervals import length, merged
from harness.model import Attachment, KernelProfile
from harness.profile._nsys_sqlite import GpuWork, HostCall, NsysTrace, TraceRange
from harness.ranges import DOMAIN

_CASE = re.compile(r"[\w.=,@+-]+(/[\w.=,@+-]+){3,}")
"""An id of a case: op, variant, dtype and shape, perhaps more. Ranges of other steps, 'check: <id>', aren't ids."""
_NAMED = 20  # cases that a message names
_SECONDS = 1e-9  # of a nanosecond


@dataclass(slots=True)
class _Part:
    """What happened in one range."""

    calls: list[HostCall] = field(default_factory=list)
    work: list[GpuWork] = field(default_factory=list)

    def of(self, kind: str) -> list[GpuWork]:
        """The work of a kind, in the order in which it began."""
        return [each for each in self.work if each.kind == kind]


def attachments(trace: NsysTrace, cases: Sequence[str], calls: int) -> list[Attachment]:
    """What each case did: one attachment for each of `cases` that the recording has, in their order.

    With no `cases` these are all that it has. A recording without ranges of ours is a program of the user's: its
    outermost ranges count as cases, by their text. If it has none, the whole is one case, whose id is ''.
    calls: how often each range made its calls; 0 if that isn't known, which gives sums of a range. Raises UsageError if
    the recording has none of the cases, or has graphs as a whole where their kernels should be.
    """
    found = _by_case(trace, cases)
    for case, parts in found.items():
        if any(part.of("graph") for part in parts):
            raise UsageError(
                f"{trace.file}: '{case}' launched CUDA graphs, which were recorded without their kernels",
                "record it again with --cuda-graph-trace=node",
            )
    return [_attachment(case, parts, calls) for case, parts in found.items()]


def _by_case(trace: NsysTrace, cases: Sequence[str]) -> dict[str, list[_Part]]:
    ours = [each for each in trace.ranges if each.domain == DOMAIN]
    if not ours and not cases:
        ranges = [each for each in trace.ranges if each.text]
        if not ranges:
            return {"": [_whole(trace)]}
        outermost = [each for own in _by_thread(ranges).values() for each in own]
        return _in_ranges(trace, sorted(outermost, key=lambda each: each.start))
    ranges = [each for each in ours if _CASE.fullmatch(each.text)]
    held = {each.text: None for each in ranges}
    wanted = [case for case in cases if case in held] if cases else list(held)
    if not wanted:
        named = ", ".join(islice(held, _NAMED)) + (f" and {len(held) - _NAMED} more" if len(held) > _NAMED else "")
        raise UsageError(
            f"{trace.file}: holds the calls of no case" + (" that was asked for" if cases and held else ""),
            f"it has {named}" if held else f"each is an NVTX range of the domain '{DOMAIN}' by the case's id",
        )
    parts = _in_ranges(trace, ranges)
    return {case: parts[case] for case in wanted}


def _whole(trace: NsysTrace) -> _Part:
    """Everything but our mark."""
    marks = _marks(trace)
    calls = [each for each in trace.calls if (each.process, each.correlation) not in marks]
    return _Part(calls, [each for each in trace.work if each.name != MARK])


def _marks(trace: NsysTrace) -> set[tuple[int, int | None]]:
    """Process and correlation of each launch of our mark."""
    return {(each.process, each.correlation) for each in trace.work if each.name == MARK}


def _in_ranges(trace: NsysTrace, ranges: Sequence[TraceRange]) -> dict[str, list[_Part]]:
    """What happened in each range, by the text of the range."""
    if not trace.calls:
        raise UsageError(
            f"{trace.file}: holds no calls of the CUDA runtime, which tell what each range launched",
            "record it again with --trace=cuda,nvtx",
        )
    threads = _by_thread(ranges)
    processes = _by_process(ranges)
    parts = {each: _Part() for each in ranges}
    owners: dict[tuple[int, int | None], _Part] = {}
    marks = _marks(trace)
    for call in trace.calls:
        own, others = threads.get(call.thread, ()), processes.get(call.process, ())
        around = _open_at(own, call.start) or _open_at(others, call.start)
        key = (call.process, call.correlation)
        if around is not None and key not in marks:
            parts[around].calls.append(call)
            owners[key] = parts[around]
    for work in trace.work:
        if (owner := owners.get((work.process, work.correlation))) is not None:
            owner.work.append(work)
    found: dict[str, list[_Part]] = defaultdict(list)
    for each, part in parts.items():
        found[each.text].append(part)
    return found


def _by_thread(ranges: Iterable[TraceRange]) -> dict[int, list[TraceRange]]:
    """The outermost ranges of each thread."""
    found: dict[int, list[TraceRange]] = defaultdict(list)
    for each in ranges:
        found[each.thread].append(each)
    return {thread: _outermost(own) for thread, own in found.items()}


def _by_process(ranges: Iterable[TraceRange]) -> dict[int, list[TraceRange]]:
    """The outermost ranges of each process, of whichever thread."""
    found: dict[int, list[TraceRange]] = defaultdict(list)
    for each in ranges:
        found[each.process].append(each)
    return {process: _outermost(own) for process, own in found.items()}


def _outermost(ranges: Iterable[TraceRange]) -> list[TraceRange]:
    """The ranges that don't begin inside another one, in order. They don't overlap."""
    kept: list[TraceRange] = []
    for each in sorted(ranges, key=lambda each: (each.start, -each.end)):
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept


def _open_at(ranges: Sequence[TraceRange], time: int) -> TraceRange | None:
    """The one of some ranges that don't overlap which was open at a time."""
    last = bisect_right(ranges, time, key=lambda each: each.start) - 1
    return ranges[last] if last >= 0 and time < ranges[last].end else None


def _attachment(case: str, parts: Sequence[_Part], calls: int) -> Attachment:
    """The sums of a case, over the number of its calls."""
    count = len(parts) * max(calls, 1)
    kernels = [part.of("kernel") for part in parts]
    copies = [copy for part in parts for copy in part.of("copy")]
    spans = [(own[0].start, max(each.end for each in own)) for own in kernels if own]
    span = sum(end - start for start, end in spans)
    sums = {
        "kernels": sum(len(own) for own in kernels),
        "time": sum(each.end - each.start for own in kernels for each in own) * _SECONDS,
        "span": span * _SECONDS,
        "gap": (span - sum(_covered(own) for own in kernels)) * _SECONDS,
    }
    if copies:
        sums |= {"copies": len(copies), "copy_bytes": sum(dict(copy.figures)["bytes"] for copy in copies)}
    sums["host"] = sum(_in_calls(part.calls) for part in parts) * _SECONDS
    values = tuple((name, value / count) for name, value in sums.items())
    return Attachment(case, "nsys", values, kernels=_profiles([each for own in kernels for each in own], count))


def _profiles(kernels: Sequence[GpuWork], count: int) -> tuple[KernelProfile, ...]:
    """Each kernel by name, in the order of the first launch, with the means of a launch."""
    launches: dict[str, list[GpuWork]] = defaultdict(list)
    for each in kernels:
        launches[each.name].append(each)
    return tuple(KernelProfile(name, len(own) / count, _means(own)) for name, own in launches.items())


def _means(launches: Sequence[GpuWork]) -> tuple[tuple[str, float], ...]:
    sums: dict[str, float] = defaultdict(float)
    for each in launches:
        sums["time"] += (each.end - each.start) * _SECONDS
        for name, value in each.figures:
            sums[name] += value
    return tuple((name, value / len(launches)) for name, value in sums.items())


def _in_calls(calls: Iterable[HostCall]) -> float:
    """Nanoseconds in calls, summed over threads. A call inside another one of its thread doesn't count again."""
    threads: dict[int, list[HostCall]] = defaultdict(list)
    for call in calls:
        threads[call.thread].append(call)
    return sum(_covered(own) for own in threads.values())


def _covered(spans: Iterable[GpuWork | HostCall]) -> float:
    """Nanoseconds in which at least one of them lasted."""
    return length(merged((span.start, span.end) for span in spans))
