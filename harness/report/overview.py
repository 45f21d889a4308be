"""The summary of a run as sentences and tables: what a report says before everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness import units
from harness.report.summary import COMPILE, MARGIN, Gain, Standing, Standings, Summary, TimeRatio
from harness.report.tree import Cell, Column, Note, Range, Table, or_nothing, text_column
from harness.units import plural

_MOST_NAMES = 3
"""Names of our variants that the sentence has room for."""


def headline(summary: Summary) -> list[str]:
    """The answer in a few sentences: who is behind, how much is gained, how far the ceiling is."""
    whole = summary.whole
    told = [_behind(whole)]
    if whole.gains:
        means = ", ".join(f"{units.ratio(gain.ratio.value)} over {opponent(gain)}" for gain in whole.gains)
        told.append(f"Geometric mean of the speed-ups: {means}.")
    if lowest := whole.lowest:
        share = units.percent(lowest.values["of_ceiling"] or 0.0)
        told.append(f"Lowest share of the ceiling: {share}, in {lowest.case.id}.")
    return told


def _behind(whole: Standings) -> str:
    if not whole.every:
        return "No case has a time."
    if not whole.compared:
        return "No variant of ours was compared with a rival."
    names = list(dict.fromkeys(s.ours.case.variant for s in whole.compared if s.ours))
    named = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    where = f"in {len(whole.behind)} of {plural(len(whole.compared), 'comparison')}"
    unsure = f" In {len(whole.unsure)} of them the noise is too wide to tell." if whole.unsure else ""
    return f"Ours ({named}) is behind the fastest rival by more than {units.percent(MARGIN, 0)} {where}.{unsure}"


def opponent(gain: Gain) -> str:
    """What a gain is over, in words."""
    return f"{COMPILE} in its best mode" if gain.over == COMPILE else gain.over


def behind(standings: Sequence[Standing]) -> Table:
    """Comparisons with a rival: both variants, their times, and the ratio with its 95% interval."""
    time, ratio = units.SECONDS, units.FINE_RATIO
    found = [(s, s.ours, s.rival, s.ratio) for s in standings if s.ours and s.rival and s.ratio]
    return Table(
        (
            text_column("comparison", (s.group for s, *_ in found), code=True),
            text_column("ours", (ours.case.variant for _, ours, *_ in found)),
            text_column("rival", (rival.case.variant for _, _, rival, _ in found)),
            Column("ours ({unit})", tuple(or_nothing(ours.subject.time) for _, ours, *_ in found), time),
            Column("rival ({unit})", tuple(or_nothing(rival.subject.time) for _, _, rival, _ in found), time),
            Column("rival / ours", tuple(own.value for *_, own in found), ratio, hint=_RATIO),
            Column("95% interval", tuple(interval(own) for *_, own in found), ratio, keep=3),
            Column("of ceiling", tuple(or_nothing(o.values["of_ceiling"]) for _, o, *_ in found), units.SHARE, keep=4),
        )
    )


_RATIO = "time of the rival over time of ours; below 1 ours is slower"


def best(standings: Sequence[Standing]) -> Table:
    """The fastest variant of each comparison, whatever its role, and how much slower the next one is."""
    lines = [s.best for s in standings]
    return Table(
        (
            text_column("comparison", (s.group for s in standings), code=True),
            text_column("fastest", (line.case.variant for line in lines)),
            Column("time ({unit})", tuple(or_nothing(line.subject.time) for line in lines), units.SECONDS),
            Column("of ceiling", tuple(or_nothing(o.values["of_ceiling"]) for o in lines), units.SHARE),
            text_column("next", (s.next.case.variant if s.next else "" for s in standings)),
            Column("next / fastest", tuple(map(_lead, standings)), units.FINE_RATIO, hint=_NEXT),
        )
    )


_NEXT = "time of the second fastest variant over time of the fastest one"


def _lead(standing: Standing) -> Cell:
    first, second = standing.best.subject.time, standing.next and standing.next.subject.time
    return second / first if first and second else ""


def by_op(ops: Sequence[Standings]) -> Table:
    """A row for each op: comparisons, how many are behind, gains, the lowest share of the ceiling."""
    overs = dict.fromkeys(gain.over for op in ops for gain in op.gains)
    return Table(
        (
            text_column("op", (op.op for op in ops)),
            Column("comparisons", tuple(str(len(op.every)) for op in ops), hint=_COMPARISON),
            Column("behind", tuple(_count(op) for op in ops), hint=_BEHIND),
            *(_gains(over, ops) for over in sorted(overs, key=lambda over: over == COMPILE)),
            Column("worst", tuple(op.worst.ratio.value if op.worst and op.worst.ratio else "" for op in ops),
                   units.RATIO, hint="the smallest of the ratios: time of the fastest rival over time of ours"),
            Column("lowest of ceiling", tuple(_lowest(op) for op in ops), units.SHARE, hint=_LOWEST),
            text_column("outcome", (", ".join(_outcomes(op)) for op in ops), keep=3),
        )
    )  # fmt: skip


_COMPARISON = "all variants of the op at one type and size are one comparison"
_BEHIND = "in how many comparisons ours is slower than the fastest rival by more than 1%, beyond the noise of both"
_LOWEST = "the lowest share of the ceiling that ours reaches; where no variant of ours was measured, the fastest"


def _gains(over: str, ops: Sequence[Standings]) -> Column:
    found = [next((gain.ratio.value for gain in op.gains if gain.over == over), None) for op in ops]
    hint = "geometric mean over the comparisons of: time of this variant over time of ours"
    return Column(f"over {over}", tuple(map(or_nothing, found)), units.RATIO, hint=hint)


def _count(op: Standings) -> str:
    return f"{len(op.behind)} of {len(op.compared)}" if op.compared else ""


def _lowest(op: Standings) -> Cell:
    return or_nothing(op.lowest.values["of_ceiling"]) if op.lowest else ""


def _outcomes(op: Standings) -> Iterator[str]:
    for status, count in op.outcomes:
        yield f"{count} {status.replace('_', ' ')}"


def warnings(summary: Summary) -> tuple[Note, ...]:
    """Each warning once with its count, and first how noisy the times are."""
    if summary.noise is None or summary.noisiest is None:
        return summary.warnings
    widest = units.percent(summary.noisiest.values["noise"] or 0.0, 2)
    told = f"The 95% interval of a time is {units.percent(summary.noise, 2)} wide in the median case, and {widest} in"
    return (Note(f"{told} {summary.noisiest.case.id}."), *summary.warnings)


def interval(ratio: TimeRatio) -> Cell:
    """The interval of a ratio as a cell; empty where it isn't known."""
    return "" if ratio.low is None or ratio.high is None else Range(ratio.low, ratio.high)
