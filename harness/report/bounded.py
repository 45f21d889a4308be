"""What a claim is judged by: a figure of a case with its 95% interval, and what the interval holds.

An interval is over fresh processes where the run has several, by Student's t as in the gate: what one process finds
depends on addresses, clocks and chosen kernels, which stay as they are until it ends. A figure that a tool found is
known from each of its recordings, or from each call of a recording. With one process the interval is of its samples: of
a ratio with both times at the opposite ends of their own intervals, as `harness compare` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from harness import metrics
from harness.metrics import Metric, Subject
from harness.model import Attachment
from harness.report import tool_figures
from harness.report.frame import Line
from harness.stats import mean_interval
from harness.units import plural

Over = Literal["processes", "recordings", "calls", "samples", "counters", ""]
"""What an interval is over: fresh processes, recordings of a tool, what one recording has of each call, the samples of
one process. Counters give one reading, and nothing gives no interval."""
_FEWEST = 2
_OF_KERNEL = "kernel."
Pass = Mapping[tuple[str, str], Line]
"""The lines of one process, by scenario and case."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A figure of a case in SI units, with the bounds of its 95% interval, which are None where nothing gives them.

    over: what the interval is over. count: how many there are of it.
    """

    value: float
    low: float | None = None
    high: float | None = None
    over: Over = ""
    count: int = 0

    @property
    def told(self) -> str:
        """What the interval is over, in words."""
        if self.over in ("processes", "recordings"):
            return plural(self.count, self.over[:-1])
        return {"calls": "one recording", "samples": "one process", "counters": "one reading", "": ""}[self.over]


def bounded(metric: Metric, own: Line, other: Line | None, passes: Sequence[Pass] = ()) -> Bounded | None:
    """The metric of a case, compared with another where it is given; None where it isn't known.

    passes: of the run, as `frame.passes` gives them.
    """
    subject = own.subject.against(other.subject if other else None)
    value = metric.value(subject)
    if value is None:
        return None
    found = _of_processes(metric, own, other, passes) or _of_recordings(metric, own, other)
    if found:
        return _with(value, mean_interval(found[1]), found[0], len(found[1]))
    if metric.by_counters:
        return Bounded(value, value, value, "counters", 1)
    ends = None if metric.by_trace else _of_samples(metric, subject, value)
    return _with(value, ends, "samples", 1) if ends else Bounded(value)


def _with(value: float, bounds: tuple[float, float], over: Over, count: int) -> Bounded:
    """The figure whose interval holds its value: the value is a median, and the interval may be of a mean."""
    return Bounded(value, min(value, bounds[0]), max(value, bounds[1]), over, count)


def _of_processes(
    metric: Metric, own: Line, other: Line | None, passes: Sequence[Pass]
) -> tuple[Over, list[float]] | None:
    """The metric of each process that measured both cases; None for fewer than two."""
    values = []
    for lines in passes:
        mine, theirs = (_in_pass(lines, line) for line in (own, other))
        if mine and bool(theirs) == bool(other):
            values.append(metric.value(mine.subject.against(theirs.subject if theirs else None)))
    known = [value for value in values if value is not None]
    return ("processes", known) if len(known) >= _FEWEST else None


def _in_pass(lines: Pass, line: Line | None) -> Line | None:
    return lines.get((line.scenario.name, line.case.id)) if line else None


def _of_recordings(metric: Metric, own: Line, other: Line | None) -> tuple[Over, list[float]] | None:
    """The metric of each recording, or of each call in one, of the tool that tells it; None for fewer than two."""
    both = [line for line in (own, other) if line]
    for tool in dict.fromkeys(attachment.tool for attachment in own.attachments):
        rest = [_told(line, [each for each in line.attachments if each.tool != tool]) for line in both]
        if _value(metric, rest) is not None:
            continue  # it doesn't come from this tool
        for over, parts in _MADE_OF.items():
            made = zip(*(parts(line, tool) for line in both), strict=False)
            values = [value for pair in made if (value := _value(metric, pair)) is not None]
            if len(values) >= _FEWEST:
                return over, values
    return None


def _value(metric: Metric, pair: Sequence[Subject]) -> float | None:
    return metric.value(pair[0].against(pair[1] if len(pair) > 1 else None))


def _told(line: Line, found: Sequence[Attachment]) -> Subject:
    """The subject of a line, as it is if tools found only that."""
    told = metrics.told(tool_figures.every(found), line.result.time)
    return replace(line.subject, facts={**dict(line.result.facts), **told})


def _recordings(line: Line, tool: str) -> Iterator[Subject]:
    """The subject by each recording of a tool; none where the tool recorded the case once."""
    mine = [each for each in line.attachments if each.tool == tool]
    others = [each for each in line.attachments if each.tool != tool]
    if len(mine) >= _FEWEST:
        yield from (_told(line, [*others, each]) for each in mine)


def _calls(line: Line, tool: str) -> Iterator[Subject]:
    """The subject by each call in the last recording of a tool, as far as its series tell figures of calls."""
    mine = [each for each in line.attachments if each.tool == tool]
    others = [each for each in line.attachments if each.tool != tool]
    if not mine:
        return
    known = dict(mine[-1].values)
    series = {name: own for name, own in mine[-1].series if name in known or name.startswith(_OF_KERNEL)}
    for number in range(min(map(len, series.values()), default=0)):
        values = known | {name: own[number] for name, own in series.items()}
        yield _told(line, [*others, replace(mine[-1], values=tuple(values.items()))])


_MADE_OF: dict[Over, Callable[[Line, str], Iterator[Subject]]] = {"recordings": _recordings, "calls": _calls}


def _of_samples(metric: Metric, subject: Subject, value: float) -> tuple[float, float] | None:
    """The bounds of a metric, with each time that it depends on at the ends of that time's own interval.

    None for a metric that depends on no time, and where a time has no interval, for too few samples.
    """
    intervals = {}
    for part in ("", "over", "alone"):
        of = getattr(subject, part) if part else subject
        if of is None or of.time is None or metric.value(_timed(subject, part, 2 * of.time)) == value:
            continue
        if of.interval is None:
            return None
        intervals[part] = of.interval
    if not intervals:
        return None
    found = []
    for ends in product(*intervals.values()):
        moved = subject
        for part, time in zip(intervals, ends, strict=True):
            moved = _timed(moved, part, time)
        found.append(metric.value(moved))
    known = [one for one in found if one is not None]
    return min(known), max(known)


def _timed(subject: Subject, part: str, time: float) -> Subject:
    """The subject with another time, or with another time of the subject that it is compared with."""
    if not part:
        return replace(subject, time=time)
    changed = replace(getattr(subject, part), time=time)
    return replace(subject, over=changed) if part == "over" else replace(subject, alone=changed)
