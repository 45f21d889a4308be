"""Which rank holds the others up, by what it costs a step, and what to do about it.

What a rank costs in a step is compared with what the other ranks cost in the same step, on average: where ranks are
alike, each is the last one by chance, and the difference is as often below zero as above. A rank is a straggler if the
difference is surely above zero (Student's t over steps, at 5% over all ranks together).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import units
from harness.families import FAMILIES
from harness.profile._skew import OfRank, Skew
from harness.profile._timeline import Timeline
from harness.stats import Mean

_LEVEL = 0.05
_MORE = " Record more steps: --active {count}."
LEAST = 0.01
"""The least share of a step that makes a rank a straggler."""
_WORTH = 0.03
"""The least share of a step in which ranks wait that is worth a word where none is a straggler."""
_ALIKE = 0.01
"""Two counts of launches that differ by less are the same work."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for. cost: seconds a step, with its 95% interval. why, advice: a sentence each."""

    rank: int
    cost: float
    low: float
    high: float
    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class Lateness:
    """What the traces say of stragglers, in a sentence, and each straggler, the most costly one first."""

    told: str
    stragglers: tuple[Straggler, ...] = ()


def verdict(found: Skew, lines: Sequence[Timeline], advice: str = _MORE) -> Lateness:
    """Which ranks are stragglers, or that none is, or why that can't be told. lines: of each rank of `found`.

    advice: how to record so many steps, {count}, where too few were recorded; '' where that can't be asked for.
    """
    if reason := _cant_tell(found):
        return Lateness(f"Can't tell which rank is late: {reason}")
    step = statistics.fmean(rank.step for rank in found.ranks)
    more = [Mean.of(_more_than_others(rank, found.ranks)) for rank in found.ranks]
    level = _LEVEL / len(found.ranks)
    late = [
        rank
        for rank, mean in zip(found.ranks, more, strict=True)
        if mean.low(level) > 0 and statistics.fmean(rank.costs) >= LEAST * step
    ]
    if late:
        late.sort(key=lambda rank: -statistics.fmean(rank.costs))
        return Lateness(f"{_named(late)} the other ranks up.", tuple(_straggler(rank, found, lines) for rank in late))
    most = max(mean.high(level) for mean in more)
    if most >= LEAST * step:
        return Lateness(
            f"Can't tell whether a rank holds the others up: one may cost up to {units.seconds(most)} a step, "
            f"{units.percent(most / step)} of it.{advice.format(count=4 * len(found.ranks[0].steps))}"
        )
    waiting = statistics.fmean(rank.waiting for rank in found.ranks)
    alike = f"No rank holds the others up by {units.percent(LEAST, 0)} of a step or more."
    if waiting < _WORTH * step:
        return Lateness(alike)
    return Lateness(
        f"{alike} Yet ranks wait {units.seconds(waiting)} a step, {units.percent(waiting / step)} of it, each time for "
        "another rank: give ranks work of the same size in each step, such as batches of sequences of equal length."
    )


def _cant_tell(found: Skew) -> str:
    """Why nothing can be said of stragglers; '' if something can."""
    counts = sorted({len(rank.steps) for rank in found.ranks})
    if found.unknown:
        return f"{found.unknown}."
    if len(counts) > 1:
        return f"the traces have {_listed(counts)} steps. Record the same steps of each rank."
    if counts[0] < 2:
        return (
            "the traces tell of fewer than two steps. 'harness profile torch -- torchrun ...' marks steps, and so does "
            "step() of torch.profiler."
        )
    return ""


def _more_than_others(rank: OfRank, ranks: Sequence[OfRank]) -> list[float]:
    """What a rank costs more than the others do on average, in each step."""
    others = [other.costs for other in ranks if other is not rank]
    return [own - statistics.fmean(step) for own, *step in zip(rank.costs, *others, strict=True)]


def _named(late: Sequence[OfRank]) -> str:
    numbers = [str(rank.rank) for rank in sorted(late, key=lambda rank: rank.rank)]
    return f"Rank {numbers[0]} holds" if len(numbers) == 1 else f"Ranks {_listed(numbers)} hold"


def _listed(words: Sequence[object]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} and {last}" if first else last


def _straggler(rank: OfRank, found: Skew, lines: Sequence[Timeline]) -> Straggler:
    mean = Mean.of(rank.costs)
    low, high = mean.interval()
    others = [other for other in found.ranks if other is not rank]
    work = rank.computing - statistics.median(other.computing for other in others)
    idle = rank.idle - statistics.median(other.idle for other in others)
    place = found.ranks.index(rank)
    beside = [*lines[:place], *lines[place + 1 :]]
    why, advice = _late_by_work(lines[place], beside, len(rank.steps), work) if work >= idle else _late_by_idling(idle)
    return Straggler(rank.rank, mean.value, max(0.0, low), high, why, advice)


def _late_by_idling(idle: float) -> tuple[str, str]:
    return (
        f"Its device is idle {units.seconds(max(0.0, idle))} a step longer than the median of the other ranks' devices",
        (
            "Its host is late: look at what this rank alone does (logging, evaluation, saving), at its DataLoader, and "
            "at who else uses its CPU cores; bind each rank to cores near its GPU"
        ),
    )


def _late_by_work(own: Timeline, others: Sequence[Timeline], steps: int, work: float) -> tuple[str, str]:
    """Why a rank computes longer: by more launches, or by launches that take longer."""
    count = statistics.median(line.count for line in others)
    name, extra = _most_extra(own, others)
    of = f", {units.seconds(extra / steps)} of them in {FAMILIES[name].title}" if extra > 0 else ""
    said = f"It computes {units.seconds(work)} a step longer than the median of the other ranks{of}"
    if abs(own.count - count) <= _ALIKE * count:
        return (
            f"{said}, in as many launches",
            (
                "Either its inputs are larger (longer sequences, a larger batch), or its device is slower: compare "
                "clocks, temperature and power, as 'nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE' tells them"
            ),
        )
    return (
        f"{said}, in {units.count(own.count / steps)} launches a step where others have {units.count(count / steps)}",
        (
            "It has work that the other ranks don't have: a stage or experts of its own, more micro-batches, logging "
            "or evaluation"
        ),
    )


def _most_extra(own: Timeline, others: Sequence[Timeline]) -> tuple[str, float]:
    """The family that the rank spends more seconds on than the median of the other ranks does, and how many more."""
    extra = {
        family.name: family.seconds - statistics.median(map(_seconds_of(family.name), others))
        for family in own.families
        if family.name != "communication"
    }
    return max(extra.items(), key=lambda item: item[1], default=("other", 0.0))


def _seconds_of(name: str) -> Callable[[Timeline], float]:
    return lambda line: next((family.seconds for family in line.families if family.name == name), 0.0)
