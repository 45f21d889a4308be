"""How several ranks wait for each other, by the traces of all of them.

Clocks: a collective in which everybody waits for everybody ends at about the same moment on all ranks. So the median of
a rank's ends minus the lowest rank's ends, over all collectives that both take part in, is what the rank's clock is
ahead by. The median has its 95% interval; what single ends scatter around the median says how far one moment of two
ranks can be compared. A rank that always leaves collectives later than the others looks like a clock that is ahead:
the traces can't tell the two apart.

Waiting: until the last rank has arrived a collective can't end, whatever the network. What it takes since then is its
own time. HolisticTraceAnalysis (facebookresearch) compares ranks by such sums over intervals, too.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from harness.families import family
from harness.intervals import Interval, arrived, length, merged
from harness.profile._ranks import Collective, Recorded
from harness.stats import median_interval

_FEWEST = 6
"""The fewest collectives whose median has a 95% interval."""
_ODD = 0.05
"""The largest share of collectives that may end before they can."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What a rank's clock is ahead of the lowest rank's by, in seconds.

    low, high: the 95% interval of the median. scatter: 95% of single ends are as near to the median. The lowest rank
    has zeros.
    """

    ahead: float
    low: float
    high: float
    scatter: float


@dataclass(frozen=True, slots=True)
class OfRank:
    """One rank's time.

    steps: seconds of each step; empty where the trace tells of none. The next four add up to the time of a step, in
    seconds, or to the time of the trace where there are no steps: computing: any kernel but communication ran. waiting:
    only collectives ran, and not all ranks had arrived. sending: other communication alone. idle: the rest.
    until, after: seconds a step in which a collective waited for its last rank, and in which only others ran, whatever
    ran beside them. last: in how many collectives the rank was the last one, by more than single moments can be
    compared. margin: median seconds by which it was the last one; 0 for none. costs: seconds of each step in which any
    other rank of the rank's collectives did nothing but wait for this rank alone, the least over the other ranks.
    """

    rank: int
    host: str
    clock: ClockOffset
    steps: tuple[float, ...]
    computing: float
    waiting: float
    sending: float
    idle: float
    until: float
    after: float
    last: int
    margin: float
    costs: tuple[float, ...]

    @property
    def step(self) -> float:
        """Seconds of a step, the mean."""
        return self.computing + self.waiting + self.sending + self.idle


@dataclass(frozen=True, slots=True)
class Skew:
    """How ranks wait for each other.

    ranks: the lowest first. collectives: how many were compared. scatter: seconds; two moments of different ranks that
    are nearer to each other can't be told apart. left_out: sentences on ranks and collectives that weren't compared.
    unknown: why nothing is known of waiting; '' if it is known.
    """

    ranks: tuple[OfRank, ...]
    collectives: int
    scatter: float
    left_out: tuple[str, ...] = ()
    unknown: str = ""


Meeting = Mapping[int, Interval]
"""When each rank was in one collective, by the place of the rank's recording."""


def skew(every: Sequence[Recorded]) -> Skew:
    """How the ranks of these recordings, the lowest one first, wait for each other."""
    meetings, left_out = _meetings(every)
    if (world := max(recorded.world for recorded in every)) > len(every):
        told = f"{len(every)} of {world} ranks were recorded, and who is late is known of these alone"
        left_out = (told, *left_out)
    clocks = _clocks(meetings, len(every))
    if lost := [recorded.rank for recorded, clock in zip(every, clocks, strict=True) if clock is None]:
        named = ", ".join(map(str, lost))
        why = f"{_FEWEST} collectives or more with another rank are needed to compare clocks; too few of ranks {named}"
        return _skew(every, [], [_SAME] * len(every), left_out, why)
    known = [clock for clock in clocks if clock]
    ours = [_on_one_clock(meeting, known) for meeting in meetings]
    scatter = max(clock.scatter for clock in known)
    odd = sum(arrived(meeting.values()) > min(end for _, end in meeting.values()) + scatter for meeting in ours)
    if odd > _ODD * len(ours):
        why = (
            f"{odd} of {len(ours)} collectives would have ended before all ranks had begun them: the traces aren't of "
            "the same steps, or clocks drift"
        )
        return _skew(every, [], known, left_out, why)
    return _skew(every, ours, known, left_out, "")


_SAME = ClockOffset(0.0, 0.0, 0.0, 0.0)


def _meetings(every: Sequence[Recorded]) -> tuple[list[Meeting], tuple[str, ...]]:
    """The collectives of at least two recorded ranks, in which the n-th of a group on each rank is the same one."""
    groups: dict[str, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for place, recorded in enumerate(every):
        for collective in recorded.collectives:
            groups[collective.group][place].append(collective)
    meetings, left_out = list[Meeting](), list[str]()
    for group, ranks in groups.items():
        if len(ranks) < 2:
            continue
        if len({tuple(one.name for one in own) for own in ranks.values()}) > 1:
            named = ", ".join(f"{len(own)} of rank {every[place].rank}" for place, own in ranks.items())
            whose = f"group {group.strip()}" if group.strip() else "the program"
            left_out.append(f"collectives of {whose} were left out, since the ranks made others: {named}")
            continue
        for row in zip(*ranks.values(), strict=True):
            shifts = (every[place].since for place in ranks)
            times = ((one.start + shift, one.end + shift) for one, shift in zip(row, shifts, strict=True))
            meetings.append(dict(zip(ranks, times, strict=True)))
    return sorted(meetings, key=lambda meeting: min(meeting.values())), tuple(left_out)


def _clocks(meetings: Sequence[Meeting], count: int) -> list[ClockOffset | None]:
    """The clock of each recording; None where it meets no rank of a known clock often enough."""
    found: list[ClockOffset | None] = [_SAME, *[None] * (count - 1)]
    growing = True
    while growing:
        growing = False
        for place in range(1, count):
            if found[place] is None and (clock := _clock(place, meetings, found)):
                found[place], growing = clock, True
    return found


def _clock(place: int, meetings: Sequence[Meeting], known: Sequence[ClockOffset | None]) -> ClockOffset | None:
    """The clock of one recording, by the lowest rank of a known clock in each collective."""
    apart = []
    for meeting in meetings:
        if place in meeting and (others := [other for other in meeting if known[other]]):
            other = min(others)
            clock = known[other]
            assert clock
            apart.append(meeting[place][1] - (meeting[other][1] - clock.ahead))
    if len(apart) < _FEWEST or (bounds := median_interval(apart)) is None:
        return None
    ahead = statistics.median(apart)
    away = sorted(abs(one - ahead) for one in apart)
    return ClockOffset(ahead, *bounds, away[min(len(away) - 1, int(0.95 * len(away)))])


def _on_one_clock(meeting: Meeting, clocks: Sequence[ClockOffset]) -> Meeting:
    return {place: (start - clocks[place].ahead, end - clocks[place].ahead) for place, (start, end) in meeting.items()}


@dataclass(frozen=True, slots=True)
class _Busy:
    """When something ran. covered: merged intervals. before: seconds of them before each."""

    covered: list[Interval]
    before: list[float]

    @classmethod
    def of(cls, intervals: Iterable[Interval]) -> _Busy:
        covered = merged(intervals)
        return cls(covered, [0.0, *accumulate(end - start for start, end in covered)])

    def until(self, moment: float) -> float:
        """Seconds before a moment."""
        count = bisect_right(self.covered, (moment, float("inf")))
        over = self.covered[count - 1][1] - moment if count else 0.0
        return self.before[count] - max(0.0, over)

    def within(self, interval: Interval) -> float:
        """Seconds within an interval."""
        return self.until(interval[1]) - self.until(interval[0])

    def beside(self, intervals: Iterable[Interval]) -> float:
        """Seconds of the intervals, taken together, in which nothing of this ran."""
        return sum(end - start - self.within((start, end)) for start, end in merged(intervals))


def _skew(
    every: Sequence[Recorded],
    meetings: Sequence[Meeting],
    clocks: Sequence[ClockOffset],
    left_out: tuple[str, ...],
    unknown: str,
) -> Skew:
    """The sums over the collectives. meetings: with times of the lowest rank's clock."""
    scatter = max(clock.scatter for clock in clocks)
    shifts = [clock.ahead - recorded.since for recorded, clock in zip(every, clocks, strict=True)]
    found = [_Times(_computing(recorded)) for recorded in every]
    for meeting in meetings:
        own = {place: (start + shifts[place], end + shifts[place]) for place, (start, end) in meeting.items()}
        late = arrived(meeting.values())
        for place, (start, end) in own.items():
            found[place].whole.append((start, end))
            found[place].waits.append((start, max(start, min(late + shifts[place], end))))
        last = max(meeting, key=lambda place: meeting[place][0])
        before = arrived(interval for place, interval in meeting.items() if place != last)
        if late - before > scatter:
            found[last].margins.append(late - before)
            for place in meeting.keys() - {last}:
                until = min(late + shifts[place], own[place][1])
                found[place].alone[last].append((before + shifts[place], until))
    ranks = []
    for place, recorded in enumerate(every):
        costs = list(_waiting_for(place, every, found))
        # Ranks with different numbers of steps can't be compared, as `_stragglers` says.
        least = tuple(map(min, zip(*costs))) if costs else (0.0,) * max(0, len(recorded.edges) - 1)  # noqa: B905
        ranks.append(_of_rank(recorded, clocks[place], found[place], least))
    return Skew(tuple(ranks), len(meetings), scatter, left_out, unknown)


@dataclass(slots=True)
class _Times:
    """When one rank computed, was in collectives, and waited, by its own clock.

    waits: until the last rank had arrived. margins: by how many seconds the rank was the last one, for each time.
    alone: when all had arrived but one rank, by the place of that rank.
    """

    busy: _Busy
    whole: list[Interval] = field(default_factory=list)
    waits: list[Interval] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    alone: dict[int, list[Interval]] = field(default_factory=lambda: defaultdict(list))


def _computing(recorded: Recorded) -> _Busy:
    """When the rank's device did anything but communicate."""
    return _Busy.of((span.start, span.end) for span in recorded.trace.spans if family(span.name) != "communication")


def _of_rank(recorded: Recorded, clock: ClockOffset, found: _Times, costs: tuple[float, ...]) -> OfRank:
    """The sums over one rank's steps."""
    spans = [(span.start, span.end) for span in recorded.trace.spans]
    edges = recorded.edges or (min(start for start, _ in spans), max(end for _, end in spans))
    window, count = (edges[0], edges[-1]), len(edges) - 1
    sent = [(span.start, span.end) for span in recorded.trace.spans if family(span.name) == "communication"]
    computing = found.busy.within(window)
    waiting = found.busy.beside(_cut(found.waits, window))
    communicating = found.busy.beside(_cut([*sent, *found.whole], window))
    until = length(merged(_cut(found.waits, window)))
    return OfRank(
        rank=recorded.rank,
        host=recorded.host,
        clock=clock,
        steps=tuple(end - start for start, end in pairwise(recorded.edges)),
        computing=computing / count,
        waiting=waiting / count,
        sending=(communicating - waiting) / count,
        idle=max(0.0, window[1] - window[0] - computing - communicating) / count,
        until=until / count,
        after=(length(merged(_cut(found.whole, window))) - until) / count,
        last=len(found.margins),
        margin=statistics.median(found.margins) if found.margins else 0.0,
        costs=costs,
    )


def _waiting_for(last: int, every: Sequence[Recorded], found: Sequence[_Times]) -> Iterator[tuple[float, ...]]:
    """Seconds of each step in which a rank did nothing but wait for the rank at `last` alone, of each rank that did."""
    for recorded, times in zip(every, found, strict=True):
        if alone := times.alone.get(last):
            yield tuple(times.busy.beside(_cut(alone, step)) for step in pairwise(recorded.edges))


def _cut(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of the intervals inside of a window."""
    cut = ((max(start, window[0]), min(end, window[1])) for start, end in intervals)
    return [(start, end) for start, end in cut if start < end]
