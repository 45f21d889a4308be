"""Which case each kernel of a recording of Nsight Systems belongs to, and the sums of each case.

A kernel belongs to the range in which the call that launched it began, whenever the kernel itself ran. That is a range
of the thread that made the call. If this thread has none, it is a range of another thread of the process: autograd
launches the kernels of a backward pass from a thread of its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter

from harness.devices import MARK
from harness.errors import UsageError
from harness.intervals import length, merged
from harness.model import Attachment, KernelProfile
from harness.profile._nsys_ranges import RangeTree
from harness.profile._nsys_sqlite import GpuWork, HostCall, NsysTrace, TraceRange
from harness.ranges import DOMAIN

_CASE = re.compile(r"[\w.=,@+-]+(/[\w.=,@+-]+){3,}")
"""An id of a case: op, variant, dtype and shape, perhaps more. Ranges of other steps, 'check: <id>', aren't ids."""
_NAMED = 20  # cases that a message names
_SECONDS = 1e-9  # of a nanosecond
_NEWER_NVTX = (
    "this Nsight Systems sees no ranges of the program's package nvtx, which is too new for it: take nvtx 0.2.11, or a "
    "newer Nsight Systems"
)
_NO_KERNELS = "The recording has no kernels, so that only its NVTX ranges are told."


@dataclass(slots=True)
class _Part:
    """What happened in one range, the whole; or in all of a program, whose whole is None. All in the order of time.

    ranges: those that began in it, also of other threads.
    """

    whole: TraceRange | None = None
    ranges: list[TraceRange] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    work: list[GpuWork] = field(default_factory=list)

    def of(self, kind: str) -> list[GpuWork]:
        """The work of a kind, in the order in which it began."""
        return [each for each in self.work if each.kind == kind]

    def lies_in(self, each: TraceRange) -> bool:
        """Whether the part's own range lies in a range that began with it; or is that range."""
        whole = self.whole
        return each is whole or (whole is not None and each.thread == whole.thread and each.end > whole.end)


class _Lane:
    """The outermost of some ranges, which don't overlap, each with its part."""

    def __init__(self, ranges: Iterable[TraceRange], parts: Mapping[TraceRange, _Part]) -> None:
        kept = _outermost(ranges)
        self._starts = [each.start for each in kept]
        self._ends = [each.end for each in kept]
        self._parts = [parts[each] for each in kept]

    def at(self, time: int) -> _Part | None:
        """The part whose range was open at a time."""
        last = bisect_right(self._starts, time) - 1
        return self._parts[last] if last >= 0 and time < self._ends[last] else None


def attachments(trace: NsysTrace, cases: Sequence[str], calls: int, *, ranges_alone: bool = True) -> list[Attachment]:
    """What each case did: one attachment for each of `cases` that the recording has, in their order.

    With no `cases` these are all that it has. A recording without cases of ours is a program of the user's: its
    outermost ranges count as cases, by their text. If it has no ranges, or has no kernels, the whole is one case, whose
    id is ''. calls: how often each range made its calls; 0 if that isn't known, which gives sums of a range.
    ranges_alone: whether a recording without kernels will do. Raises UsageError if the recording has none of the cases,
    or nothing to tell, or has graphs as a whole where their kernels should be.
    """
    if not trace.has_kernels and not (trace.ranges and ranges_alone):
        raise _without_kernels(trace)
    found = _by_case(trace, cases)
    for case, parts in found.items():
        if any(part.of("graph") for part in parts):
            raise UsageError(
                f"{trace.file}: '{case}' launched CUDA graphs, which were recorded without their kernels",
                "record it again with --cuda-graph-trace=node",
            )
    return [_attachment(case, parts, calls, trace) for case, parts in found.items()]


def _without_kernels(trace: NsysTrace) -> UsageError:
    about = ("cuda",) if trace.ranges else ("cuda", "nvtx")
    notes = _notes(trace, *about)
    said = f"; Nsight Systems noted: {' '.join(notes)}" if notes else ""
    advice = (
        "check that the program used the GPU, and that it was recorded with --trace=cuda,nvtx; "
        "Nsight Systems must be at least as new as the driver"
    )
    if not trace.ranges and any("payload extension is incompatible" in note for note in notes):
        advice = f"{_NEWER_NVTX}; for kernels, {advice}"
    return UsageError(f"{trace.file}: holds no kernels{'' if trace.ranges else ' and no NVTX ranges'}{said}", advice)


def _notes(trace: NsysTrace, *about: str) -> list[str]:
    """What Nsight Systems noted about these words."""
    return [note for note in trace.notes if any(word in note.lower() for word in about)]


def _by_case(trace: NsysTrace, cases: Sequence[str]) -> dict[str, list[_Part]]:
    ours = [each for each in trace.ranges if each.domain == DOMAIN]
    ranges = [each for each in ours if _CASE.fullmatch(each.text)]
    if not cases and not (ours if trace.has_kernels else ranges):
        named = [each for each in trace.ranges if each.text] if trace.has_kernels else []
        outermost = [each for own in _by(attrgetter("thread"), named).values() for each in _outermost(own)]
        return _in_ranges(trace, sorted(outermost, key=attrgetter("start"))) if named else {"": [_whole(trace)]}
    held = {each.text: None for each in ranges}
    wanted = [case for case in cases if case in held] if cases else list(held)
    if not wanted:
        listed = ", ".join(islice(held, _NAMED)) + (f" and {len(held) - _NAMED} more" if len(held) > _NAMED else "")
        raise UsageError(
            f"{trace.file}: holds the calls of no case" + (" that was asked for" if cases and held else ""),
            f"it has {listed}" if held else f"each is an NVTX range of the domain '{DOMAIN}' by the case's id",
        )
    parts = _in_ranges(trace, ranges)
    return {case: parts[case] for case in wanted}


def _whole(trace: NsysTrace) -> _Part:
    """Everything but our mark."""
    marks = _marks(trace)
    calls = [each for each in trace.calls if (each.process, each.correlation) not in marks]
    return _Part(None, [*trace.ranges], calls, [each for each in trace.work if each.name != MARK])


def _marks(trace: NsysTrace) -> set[tuple[int, int | None]]:
    """Process and correlation of each launch of our mark."""
    return {(each.process, each.correlation) for each in trace.work if each.name == MARK}


def _in_ranges(trace: NsysTrace, ranges: Sequence[TraceRange]) -> dict[str, list[_Part]]:
    """What happened in each range, by the text of the range."""
    if trace.has_kernels and not trace.calls:
        raise UsageError(
            f"{trace.file}: holds no calls of the CUDA runtime, which tell what each range launched",
            "record it again with --trace=cuda,nvtx",
        )
    parts = {each: _Part(each) for each in ranges}
    threads = {thread: _Lane(own, parts) for thread, own in _by(attrgetter("thread"), ranges).items()}
    processes = {process: _Lane(own, parts) for process, own in _by(attrgetter("process"), ranges).items()}
    nothing = _Lane((), parts)

    def part_of(each: HostCall | TraceRange) -> _Part | None:
        own, others = threads.get(each.thread, nothing), processes.get(each.process, nothing)
        return own.at(each.start) or others.at(each.start)

    for each in trace.ranges:
        if (part := part_of(each)) is not None and not part.lies_in(each):
            part.ranges.append(each)
    owners: dict[tuple[int, int | None], _Part] = {}
    marks = _marks(trace)
    for call in trace.calls:
        key = (call.process, call.correlation)
        if key not in marks and (part := part_of(call)) is not None:
            part.calls.append(call)
            owners[key] = part
    for work in trace.work:
        if (owner := owners.get((work.process, work.correlation))) is not None:
            owner.work.append(work)
    found: dict[str, list[_Part]] = defaultdict(list)
    for each, part in parts.items():
        found[each.text].append(part)
    return found


def _by(key: Callable[[TraceRange], int], ranges: Iterable[TraceRange]) -> dict[int, list[TraceRange]]:
    """The ranges of each thread, or of each process."""
    found: dict[int, list[TraceRange]] = defaultdict(list)
    for each in ranges:
        found[key(each)].append(each)
    return found


def _outermost(ranges: Iterable[TraceRange]) -> list[TraceRange]:
    """The ranges that don't begin inside another one, in order. They don't overlap."""
    kept: list[TraceRange] = []
    for each in sorted(ranges, key=lambda each: (each.start, -each.end)):
        if not kept or each.start >= kept[-1].end:
            kept.append(each)
    return kept


def _attachment(case: str, parts: Sequence[_Part], calls: int, trace: NsysTrace) -> Attachment:
    """The sums of a case, over the number of its calls. A recording without kernels tells its ranges alone."""
    count = len(parts) * max(calls, 1)
    tree = RangeTree(case)
    for part in parts:
        tree.add(part.whole, part.ranges, part.calls, part.work)
    ranges = tree.profiles(count, kernels=trace.has_kernels)
    if not trace.has_kernels:
        return Attachment(case, "nsys", ranges=ranges, notes=(_NO_KERNELS, *_notes(trace, "cuda")))
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
    profiles = _profiles([each for own in kernels for each in own], count)
    # A range alone is the case, whose figures are known.
    return Attachment(case, "nsys", values, kernels=profiles, ranges=ranges[1:] and ranges)


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
