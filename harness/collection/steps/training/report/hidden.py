"""What a report says beside the table of steps on several devices: what they lose, how much communication is hidden.

The instrument finds it by `Op.pages`, and reads it as `harness.report.sections` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness import units
from harness.collection.steps.training._hidden import (
    COMMUNICATION,
    HIDDEN,
    HIDDEN_HIGH,
    HIDDEN_LOW,
    WAITING,
    ByTimes,
    by_times,
)
from harness.collection.steps.training.report import lost
from harness.metrics import METRICS
from harness.report.frame import Line, setting
from harness.report.tree import Bounds, Cell, Column, Note, Section, Table, text_column

_UNTIL = (
    "time of NCCL's kernels until the last rank's kernel had begun, as a share of the steps, by the traces of all ranks"
)
_SINCE = "the rest of the time of NCCL's kernels, as a share of the steps"
_DISAGREE = (
    "the times and the trace disagree by more than both intervals allow, so both stand here. The trace counts it as "
    "communication where a kernel of NCCL waits for another rank, and doesn't count what NCCL's kernels take from "
    "other kernels"
)


def sections(lines: Sequence[Line]) -> Iterator[Section]:
    """A section on what is lost, and one on the variants that communicate, each if something is known of it."""
    if told := (*lost.blocks(lines),):
        yield Section("What several devices lose", told)
    shown = [line for line in lines if COMMUNICATION in line.subject.facts or by_times(line.subject)]
    if shown:
        yield Section("Communication", (*_remarks(shown), _table(shown)))


def _table(lines: Sequence[Line]) -> Table:
    facts = [line.subject.facts for line in lines]
    share, times = units.SHARE, [by_times(line.subject) for line in lines]
    columns = (
        text_column("case", (f"{setting(line.case)}, {line.case.variant}" for line in lines)),
        Column(
            "hidden (times)", tuple(map(_by_times, times)), share, right=False, hint=METRICS["hidden_by_times"].hint
        ),
        Column("interval", tuple(map(_interval_of_times, times)), right=False),
        Column("hidden (trace)", tuple(own.get(HIDDEN, "") for own in facts), share, hint=METRICS[HIDDEN].hint),
        Column("interval (trace)", tuple(_bounds(own.get(HIDDEN_LOW), own.get(HIDDEN_HIGH)) for own in facts)),
        Column("communication", tuple(own.get(COMMUNICATION, "") for own in facts), share, hint=_hint(COMMUNICATION)),
        Column("until the last rank", tuple(_of_waiting(line, until=True) for line in lines), share, hint=_UNTIL),
        Column("since then", tuple(_of_waiting(line, until=False) for line in lines), share, hint=_SINCE),
    )
    return Table(tuple(column for column in columns if not column.is_empty))


def _hint(name: str) -> str:
    return METRICS[name].hint


def _by_times(found: ByTimes | None) -> Cell:
    if found is None:
        return ""
    return f"not known: {found.unknown}" if found.value is None else found.value


def _interval_of_times(found: ByTimes | None) -> Cell:
    return _bounds(found.low, found.high) if found else ""


def _bounds(low: float | None, high: float | None) -> Cell:
    return "" if low is None or high is None else Bounds(low, high, units.SHARE)


def _of_waiting(line: Line, *, until: bool) -> Cell:
    facts = line.subject.facts
    if not {WAITING, COMMUNICATION} <= facts.keys():
        return ""
    return facts[COMMUNICATION] * (facts[WAITING] if until else 1 - facts[WAITING])


def _remarks(lines: Sequence[Line]) -> Iterator[Note]:
    """Where the trace disagrees with the times, and that it can't tell how long kernels waited."""
    yield from (Note(f"{setting(line.case)}: {_DISAGREE}.") for line in lines if _disagree(line))
    told = [line.subject.facts for line in lines if HIDDEN in line.subject.facts]
    if told and not any(WAITING in facts for facts in told):
        yield Note(
            "The traces of this run don't tell how long NCCL's kernels waited for the other ranks, which may be most "
            "of their time."
        )


def _disagree(line: Line) -> bool:
    """Whether both intervals are known, and have nothing in common."""
    times, facts = by_times(line.subject), line.subject.facts
    if not times or times.low is None or times.high is None or not {HIDDEN_LOW, HIDDEN_HIGH} <= facts.keys():
        return False
    return facts[HIDDEN_HIGH] < times.low or facts[HIDDEN_LOW] > times.high
