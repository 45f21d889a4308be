"""The audit of bytes: what hardware counters saw, beside what ops and variants declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from harness import units
from harness.report.counted import LIMIT, PARTS, Counted, Gap
from harness.report.reasons import UNEXPLAINED, reasons
from harness.report.tree import Block, Cell, Column, Items, Kind, Note, Section, Table, or_nothing, text_column

TITLE = "Bytes by counters"
_LARGE = 100e6
"""Bytes of work from which on a time says more about the kernel than about its launch."""
_CLOSE = 0.02
"""At these sizes, the tool's time and ours should be this close."""
_WORK = "bytes that the op has to read and to write"
_TRAFFIC = "bytes that the variant reads and writes by its own account"
_FOUND = "bytes of the device's memory that a call {}, by hardware counters"
_GAP = "bytes by counters over bytes by the variant's account, less 1: above 0, more is moved than the account says"
_CAUSE = (
    f"the usual reasons that the counters allow, where they are more than {LIMIT:.0%} from the account, in bytes read "
    "or in bytes written; the sentences below the table have the figures"
)
_RATIO = "the sum of the times of a call's kernels, as the tool found them, over our time of a call, less 1"


def blocks(found: Sequence[Counted]) -> tuple[Block, ...]:
    """The audit of some cases: how many agree, the table, the reasons, and how the tool's times compare with ours."""
    told, apart = tuple(_told(found)), tuple(_times_apart(found))
    agreeing, *timed = summary(found)
    return (agreeing, table(found), *_listed(told), *timed, *_listed(apart))


def _listed(notes: tuple[Note, ...]) -> tuple[Block, ...]:
    return (Items(notes),) if notes else ()


def summary(found: Sequence[Counted]) -> tuple[Note, ...]:
    """How many cases agree with what they declare, and how close the tool's times are to ours."""
    return (_agreeing(found), *_times(found))


def section(found: Sequence[Counted]) -> Iterator[Section]:
    """The audit as a section of a page; nothing where no case has counters."""
    if found:
        yield Section(TITLE, blocks(found))


def table(found: Sequence[Counted]) -> Table:
    """A row a case: bytes of the work, of the account and of the counters, how far apart, and the reasons' names."""
    parts = {part: [Gap(c, part) for c in found] for part in PARTS}
    columns = (
        text_column("case", (c.line.case.id for c in found), code=True),
        Column("work", tuple(float(c.work.moved) for c in found), units.BYTES, keep=3, hint=_WORK),
        Column("traffic", tuple(float(c.declared.moved) for c in found), units.BYTES, hint=_TRAFFIC),
        Column("read", tuple(c.read for c in found), units.BYTES, hint=_FOUND.format("read")),
        Column("written", tuple(c.written for c in found), units.BYTES, hint=_FOUND.format("wrote")),
        Column("gap", tuple(c.share for c in found), units.CHANGE, hint=_GAP),
        Column("gap of read", _shares(parts["read"]), units.CHANGE, keep=5, hint=_GAP),
        Column("gap of written", _shares(parts["written"]), units.CHANGE, keep=5, hint=_GAP),
        Column("tool's time", tuple(map(_time_apart, found)), units.CHANGE, keep=4, hint=_RATIO),
        text_column("cause", map(cause, found), hint=_CAUSE),
    )
    kinds: tuple[Kind, ...] = tuple("warning" if UNEXPLAINED in cause(c) else "" for c in found)
    return Table(tuple(column for column in columns if not column.is_empty), kinds=kinds)


def _shares(gaps: Sequence[Gap]) -> tuple[Cell, ...]:
    return tuple(or_nothing(gap.share) for gap in gaps)


def _time_apart(c: Counted) -> Cell:
    own = c.line.result.time
    return c.time / own - 1 if c.time and own else ""


def cause(c: Counted) -> str:
    """The short names of the reasons of a case's gaps; empty where nothing is flagged."""
    names = [name for gap in c.gaps for name in reasons(gap) or (UNEXPLAINED,)]
    return ", ".join(dict.fromkeys(names))


def _told(found: Sequence[Counted]) -> Iterator[Note]:
    """A note for each part of each case that is flagged: how far apart it is, and each reason with its figures."""
    for c in found:
        for gap in c.gaps:
            why = "; ".join(reasons(gap).values()) or UNEXPLAINED
            yield Note(f"{_apart(gap)}: {why}", "" if why != UNEXPLAINED else "warning", about=c.line.case.id)


def _apart(gap: Gap) -> str:
    """'3.60% more written than declared (38.7 MB)'."""
    way = "more" if gap.bytes > 0 else "less"
    share = f"{units.percent(abs(gap.share), 2)} " if gap.share is not None else ""
    return f"{share}{way} {gap.part} than declared ({units.size(abs(gap.bytes))})"


def _agreeing(found: Sequence[Counted]) -> Note:
    """How many cases agree, and how many of the other cases have a reason."""
    states = Counter("within" if not c.gaps else "open" if UNEXPLAINED in cause(c) else "explained" for c in found)
    apart = states["explained"] + states["open"]
    told = f"{states['within']} of {units.plural(len(found), 'case')} within {LIMIT:.0%} of the bytes that they declare"
    if apart:
        told += f"; of the other {apart}, {states['explained']} explained, {states['open']} {UNEXPLAINED}"
    return Note(f"{told}.")


def _times(found: Sequence[Counted]) -> Iterator[Note]:
    """How close the tool's times are to ours where the work is large, and the case where they are furthest apart."""
    large = [(abs(apart), c) for c, apart in _large(found)]
    if not large:
        return
    worst, case = max(large, key=lambda one: one[0])
    within = sum(apart <= _CLOSE for apart, _ in large)
    tools = ", ".join(dict.fromkeys(c.found.tool for _, c in large))
    yield Note(
        f"Times of {tools} and ours, at {units.size(_LARGE, 3)} of work and more: {within} of "
        f"{units.plural(len(large), 'case')} within {_CLOSE:.0%}; at worst {units.percent(worst, 2)} apart, in "
        f"{case.line.case.id}."
    )


def _large(found: Sequence[Counted]) -> Iterator[tuple[Counted, float]]:
    """The cases whose work is large and whose kernels the tool has timed, with how far apart the two times are."""
    for c in found:
        apart = _time_apart(c)
        if c.work.moved >= _LARGE and isinstance(apart, float):
            yield c, apart


def _times_apart(found: Sequence[Counted]) -> Iterator[Note]:
    """A note for each large case whose times are too far apart, with what is known to differ between the two."""
    for c, apart in _large(found):
        if abs(apart) > _CLOSE:
            why = "; ".join(_differences(c)) or "why isn't known"
            yield Note(f"the tool's time is {units.change(apart)} from ours: {why}", about=c.line.case.id)


def _differences(c: Counted) -> Iterator[str]:
    """What is known to differ between a timed call and a call under a tool."""
    if any(warning.code == "throttled" for warning in c.line.result.warnings):
        yield "the clock was lowered while we timed (the warning 'throttled'), and a tool lets the device cool"
    if c.line.case.variant == "compile_autotune":
        yield "torch.compile chose its kernels anew in the tool's process"
    if c.launches > 1:
        yield f"a call has {c.launches:g} kernels, which the tool runs one at a time"
