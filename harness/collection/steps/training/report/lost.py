"""Where the time goes that a step on several devices takes beyond a step on one: to what, and how much to each.

The ways of `_ranks.WAYS` differ by one thing each, so the differences of their times are the parts. The parts add up to
what DistributedDataParallel loses. A way that wasn't timed leaves a part of two causes. A trace of the kernels divides
what communication costs. For hooks of ours no way is without communication, so theirs is one part with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness import units
from harness.collection.steps.training._hidden import (
    AFTER,
    COMMUNICATION,
    HIDDEN,
    HIDDEN_HIGH,
    HIDDEN_LOW,
    OVERLAPPED,
    WITHOUT,
)
from harness.collection.steps.training._ranks import BY_COPIES, IN_BUCKETS, WAYS
from harness.metrics import Subject
from harness.report.frame import Line, setting
from harness.report.tree import Block, Cell, Column, Note, Range, Table, text_column

ALONE = WAYS[0].name
_WHOLE = "all that is lost"
_UNHIDDEN = "for comparison: one all-reduce after the backward"
_SHARED = (ALONE, "host and power, which devices share")
_CAUSES = {
    OVERLAPPED: (_SHARED, (WITHOUT, "hooks of DistributedDataParallel"), (OVERLAPPED, "communication")),
    **{way.name: (_SHARED, (way.name, "hooks and communication")) for way in (IN_BUCKETS, BY_COPIES)},
}
"""By the way whose loss is divided: ways in their order, each with what costs its step more than the one before it."""
_DIVIDED = {
    OVERLAPPED: ("NCCL's kernels", "copies to buckets, slower kernels beside NCCL's"),
    IN_BUCKETS.name: ("NCCL's kernels", "hooks, copies to buckets, slower kernels beside NCCL's"),
    BY_COPIES.name: (
        "copies between devices",
        "hooks, copies to buckets, sums, waiting for other devices, slower kernels beside copies",
    ),
}
"""By the way: what a trace has of its communication, and what it doesn't tell apart."""
_BY_TRACE = "the share of the step is from the trace, the time of the step from the timing"


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time, or a difference of times, with its 95% interval; seconds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, timed: Subject) -> Seconds | None:
        """The time of a case; None where it has no interval."""
        return cls(timed.time, *timed.interval) if timed.time and timed.interval else None

    def __sub__(self, other: Seconds) -> Seconds:
        """The difference. Its interval is wide rather than narrow, since both times may be at the worst ends."""
        return Seconds(self.value - other.value, self.low - other.high, self.high - other.low)

    @property
    def is_noise(self) -> bool:
        """Whether the difference may as well be none."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True)
class LostPart:
    """Something that takes time. how: which times, or which figures of a trace, it was computed from."""

    name: str
    how: str
    lost: Seconds


def blocks(lines: Sequence[Line]) -> Iterator[Block]:
    """A sentence for each setting, and a table where the loss can be divided; `lines` are those of one scenario."""
    for line in lines:
        step, label = line.subject.time, f"{setting(line.case)}, {line.case.variant}"
        if line.case.variant not in _CAUSES or line.case.world < 2 or step is None:
            continue
        if line.subject.alone is None or line.subject.alone.time is None:
            one = replace(line.case, variant=ALONE, world=1).id
            yield Note(f"there is no efficiency, since this run has no time of {one}.", label=label)
        elif parts := parts_of(line.subject):
            yield Note(_answer(parts, step), label=label)
            yield _table(parts, step)


def parts_of(overlapped: Subject) -> list[LostPart]:
    """What a step that averages gradients meanwhile loses, part by part, then all of it, then a comparison if timed.

    Where a way wasn't timed, its part and the next one are one part. Nothing where only the whole is known.
    """
    way = overlapped.variant
    one = Seconds.of(overlapped.alone) if overlapped.alone else None
    ways = {name: Seconds.of(beside) for name, beside in overlapped.beside.items()}
    times = {name: time for name, time in ways.items() if time}
    between = {name for name, _ in _CAUSES[way][:-1]}
    if overlapped.world < 2 or one is None or way not in times or not times.keys() & between:
        return []
    found = [*_differences(_CAUSES[way], one, times, overlapped.world)]
    if way != OVERLAPPED or WITHOUT in times:
        found[-1:] = _of_communication(way, found[-1], overlapped.facts, times[way].value)
    found.append(LostPart(_WHOLE, f"{way} - {ALONE} on one", times[way] - one))
    if {WITHOUT, AFTER} <= times.keys():
        found.append(LostPart(_UNHIDDEN, f"{AFTER} - {WITHOUT}", times[AFTER] - times[WITHOUT]))
    return found


def _differences(
    ways: Sequence[tuple[str, str]], one: Seconds, times: Mapping[str, Seconds], world: int
) -> Iterator[LostPart]:
    """What each way that was timed takes beyond the one before it."""
    causes, before, beyond = [], one, f"{ALONE} on one"
    for name, cause in ways:
        causes.append(cause)
        if time := times.get(name):
            way = f"{ALONE} on {world} devices" if name == ALONE else name
            yield LostPart("; ".join(causes), f"{way} - {beyond}", time - before)
            causes, before, beyond = [], time, name


def _of_communication(way: str, whole: LostPart, facts: Mapping[str, float], step: float) -> Iterator[LostPart]:
    """What communication costs a step of so many seconds, divided by the trace where there is one."""
    if not {HIDDEN, COMMUNICATION} <= facts.keys():
        yield whole
        return
    share, hidden = facts[COMMUNICATION], facts[HIDDEN]
    # A trace whose steps differ in their number of kernels has no interval.
    low, high = facts.get(HIDDEN_LOW, hidden), facts.get(HIDDEN_HIGH, hidden)
    bare = Seconds(*(step * share * (1 - one) for one in (hidden, high, low)))
    sent, rest = _DIVIDED[way]
    yield LostPart(f"{sent} with no kernel beside them", "trace", bare)
    yield LostPart(f"the rest: {rest}, gaps", f"{whole.how} - the line above", whole.lost - bare)


def _answer(parts: Sequence[LostPart], step: float) -> str:
    """What is lost, and to what most of it goes."""
    place = next(number for number, part in enumerate(parts) if part.name == _WHOLE)
    causes, whole = parts[:place], parts[place]
    if whole.lost.is_noise:
        return "a step takes as long as on one device, within the noise."
    if whole.lost.value < 0:
        return f"a step takes {units.seconds(-whole.lost.value, 3)} less than on one device."
    lost = f"a step loses {units.seconds(whole.lost.value, 3)}, {units.percent(whole.lost.value / step)} of it"
    if not (sure := [part for part in causes if part.lost.low > 0]):
        return f"{lost}; no part of that is larger than the noise."
    most = max(sure, key=lambda part: part.lost.value)
    return f"{lost}, most to: {most.name}, {units.seconds(most.lost.value, 3)}."


def _table(parts: Sequence[LostPart], step: float) -> Table:
    return Table(
        (
            text_column("lost to", (part.name for part in parts)),
            Column("time ({unit})", tuple(part.lost.value for part in parts), units.MICROSECONDS),
            Column("interval ({unit})", tuple(map(_interval, parts)), units.MICROSECONDS),
            Column("of the step", tuple(part.lost.value / step for part in parts), units.SHARE, hint=_BY_TRACE),
            text_column("", (_judged(part) for part in parts)),
            text_column("found by", (part.how for part in parts)),
        ),
        kinds=tuple("strong" if part.name == _WHOLE else "" for part in parts),
    )


def _interval(part: LostPart) -> Cell:
    return Range(part.lost.low, part.lost.high) if part.lost.low < part.lost.high else ""


def _judged(part: LostPart) -> str:
    return "within the noise" if part.lost.is_noise else ""
