"""The timelines of several ranks as one page: who holds the others up, and how each rank's time is spent."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from harness import units
from harness.profile.torch import FAMILIES, MERGED, RanksProfile
from harness.report import timeline
from harness.report.tree import Block, Column, Facts, Note, Page, Range, Section, Table, Terms, text_column

_MOST_ROWS = 16
"""More ranks than that are shown by the least, the median and the most of each figure."""


def write(found: RanksProfile, folder: Path) -> list[Path]:
    """Write the page and the plot of the rank that it shows closest into `folder`, and give their paths."""
    place = _shown(found)
    return timeline.save(page(found), found.timelines[place], folder)


def page(found: RanksProfile) -> Page:
    """The timelines of all ranks for a page or a console, and behind them the whole timeline of one rank."""
    place = _shown(found)
    closest = timeline.page(found.timelines[place], found.traces[place])
    rank = found.skew.ranks[place].rank
    return Page(
        f"Timelines of {units.plural(len(found.traces), 'rank')}",
        (
            Note(found.verdict.told, "warning" if found.verdict.stragglers else ""),
            *_stragglers(found),
            Section("By rank", tuple(_ranks(found))),
            Section("Collectives", tuple(_collectives(found))),
            Section("Ranks by family", tuple(_families(found))),
            Section("Trace of all ranks", (Note(f"{MERGED} has all ranks on one clock, for {timeline.VIEWER}."),)),
            Section(f"Rank {rank} alone", closest.blocks),
        ),
    )


def _shown(found: RanksProfile) -> int:
    """The place of the rank whose whole timeline is shown: the costliest straggler, else the lowest rank."""
    late = [one.rank for one in found.verdict.stragglers]
    return next((place for place, rank in enumerate(found.skew.ranks) if rank.rank == late[0]), 0) if late else 0


def _stragglers(found: RanksProfile) -> Iterator[Block]:
    """What each straggler costs, why, and what to do."""
    late = found.verdict.stragglers
    if not late:
        return
    of = {rank.rank: rank for rank in found.skew.ranks}
    yield Table(
        (
            text_column("straggler", [f"rank {one.rank}" for one in late]),
            Column("cost ({unit})", tuple(one.cost for one in late), units.SECONDS),
            Column("95% interval", tuple(Range(one.low, one.high) for one in late), units.SECONDS),
            Column("of a step", tuple(one.cost / of[one.rank].step for one in late), units.SHARE),
            Column("last in", tuple(of[one.rank].last / found.skew.collectives for one in late), units.SHARE),
        )
    )
    yield Terms(tuple((f"rank {one.rank}", f"{one.why}. {one.advice}.") for one in late))
    yield Note(
        "'Cost' is the time of a step in which each other rank did nothing but wait for this rank alone: what a step "
        "gains at most if this rank isn't later than the others. 'Last in' is a share of the collectives."
    )


def _ranks(found: RanksProfile) -> Iterator[Block]:
    """How long a step takes on each rank, and what of."""
    ranks = found.skew.ranks
    known = not found.skew.unknown
    kinds = [
        ("computing", [rank.computing / rank.step if rank.step else 0.0 for rank in ranks]),
        *([("waiting", [rank.waiting / rank.step if rank.step else 0.0 for rank in ranks])] if known else []),
        ("sending", [rank.sending / rank.step if rank.step else 0.0 for rank in ranks]),
        ("idle", [rank.idle / rank.step if rank.step else 0.0 for rank in ranks]),
    ]
    steps = any(rank.steps for rank in ranks)
    times = ("step ({unit})" if steps else "time ({unit})", [rank.step for rank in ranks])
    if len(ranks) <= _MOST_ROWS:
        made = [Column("rank", tuple(float(rank.rank) for rank in ranks), units.COUNT)]
        if len({rank.host for rank in ranks}) > 1:
            made.append(text_column("host", [rank.host for rank in ranks], keep=3))
        made.append(Column(times[0], tuple(times[1]), units.SECONDS))
        if steps:
            ranges = tuple(Range(min(rank.steps), max(rank.steps)) if rank.steps else "" for rank in ranks)
            made.append(Column("least and most", ranges, units.SECONDS, keep=4))
        yield Table((*made, *(Column(name, tuple(values), units.SHARE) for name, values in kinds)))
    else:
        yield _summed([(times[0].partition(" ")[0], times[1], units.SECONDS)], _numbers(found))
        yield _summed([(name, values, units.SHARE) for name, values in kinds], _numbers(found))
    waits = [("waiting", "only collectives ran, until the last rank had arrived")] if known else []
    yield Terms(
        (
            ("computing", "a kernel that isn't communication ran" if found.timelines[0].on_gpu else "an operator ran"),
            *waits,
            ("sending", f"communication alone ran{', after the last rank had arrived' if known else ', or waited'}"),
        )
    )


def _numbers(found: RanksProfile) -> list[int]:
    """The numbers of the ranks."""
    return [rank.rank for rank in found.skew.ranks]


def _summed(rows: list[tuple[str, list[float], units.Unit]], ranks: list[int]) -> Table:
    """The least, the median and the most over ranks of each figure, and which rank has the most."""
    unit = rows[0][2]
    in_unit = "" if unit is units.SHARE else " ({unit})"
    most = [values.index(max(values)) for _, values, _ in rows]
    return Table(
        (
            text_column("", [name for name, _, _ in rows]),
            Column(f"least{in_unit}", tuple(min(values) for _, values, _ in rows), unit),
            Column(f"median{in_unit}", tuple(statistics.median(values) for _, values, _ in rows), unit),
            Column(f"most{in_unit}", tuple(max(values) for _, values, _ in rows), unit),
            Column("most in rank", tuple(float(ranks[place]) for place in most), units.COUNT),
        )
    )


def _collectives(found: RanksProfile) -> Iterator[Block]:
    """What was compared, what was found, and what the words mean."""
    skew = found.skew
    for text in skew.left_out:
        yield Note(f"{text[:1].upper()}{text[1:]}.")
    if skew.unknown:
        yield Note(f"Nothing is known of waiting: {skew.unknown}.")
        return
    yield Facts(
        (
            ("compared", f"{units.plural(skew.collectives, 'collective')} in which every rank waits for all"),
            ("resolution", f"{units.seconds(skew.scatter, 2)}; ranks that arrive nearer to each other arrive together"),
        )
    )
    yield from _arrivals(found)
    clock = (
        f"ahead of rank {skew.ranks[0].rank}'s, by the ends of collectives, which end at about the same moment on all "
        "ranks: the median over all collectives; '+-' is half of its 95% interval"
    )
    yield Terms(
        (
            ("clock", clock),
            ("until the last", "time a step in which a collective waited for its last rank, hidden by kernels or not"),
            ("since", "time a step in other collectives: what sending takes"),
            ("last in", "share of the collectives in which the rank arrived last, and by how much, the median"),
        )
    )
    yield Note(
        "A rank that always leaves collectives later than the other ranks looks as if its clock were ahead; the traces "
        "can't tell the two apart."
    )


def _arrivals(found: RanksProfile) -> Iterator[Block]:
    """What the clock of each rank differs by, how long collectives waited and sent, and which rank was last."""
    skew, ranks = found.skew, found.skew.ranks
    if len(ranks) <= _MOST_ROWS:
        yield Table(
            (
                Column("rank", tuple(float(rank.rank) for rank in ranks), units.COUNT),
                Column("clock", tuple(_signed(rank.clock.ahead) for rank in ranks)),
                Column("+-", tuple(units.seconds((rank.clock.high - rank.clock.low) / 2, 2) for rank in ranks), keep=4),
                Column("until the last ({unit})", tuple(rank.until for rank in ranks), units.SECONDS),
                Column("since ({unit})", tuple(rank.after for rank in ranks), units.SECONDS),
                Column("last in", tuple(rank.last / skew.collectives for rank in ranks), units.SHARE),
                Column("by ({unit})", tuple(rank.margin if rank.last else "" for rank in ranks), units.SECONDS, keep=3),
            )
        )
    else:
        rows = [("until the last", [r.until for r in ranks]), ("since", [r.after for r in ranks])]
        clocks = ("clock, apart", [abs(rank.clock.ahead) for rank in ranks])
        yield _summed([(name, values, units.SECONDS) for name, values in (*rows, clocks)], _numbers(found))
        last = [rank.last / skew.collectives for rank in ranks]
        yield _summed([("last in", last, units.SHARE)], _numbers(found))


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+' if seconds else ''}{units.seconds(abs(seconds), 3)}"


def _families(found: RanksProfile) -> Iterator[Block]:
    """Each family's time a step over the ranks."""
    steps = [max(1, len(rank.steps)) for rank in found.skew.ranks]
    names = {family.name: None for line in found.timelines for family in line.families}
    rows = []
    for name in names:
        own = [sum(f.seconds for f in line.families if f.name == name) for line in found.timelines]
        values = [seconds / count for seconds, count in zip(own, steps, strict=True)]
        rows.append((FAMILIES[name].title, values, units.SECONDS))
    rows.sort(key=lambda row: -statistics.median(row[1]))
    yield _summed(rows, _numbers(found))
    unit = "a step" if any(rank.steps for rank in found.skew.ranks) else "of the traces"
    yield Note(f"Times are sums of durations {unit}. Communication has its waiting in it.")
