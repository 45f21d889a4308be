"""What the ranks of a case did beside each other, as a profiler recorded them: a table for each case, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness import units
from harness.model import Attachment
from harness.report.tree import Block, Column, Note, Table, text_column

MEANING = (
    "Each rank of a case of several devices, by the traces of all of them. Times are of one call. computing: anything "
    "but communication ran. waiting: only collectives ran, until the last rank had arrived. sending: communication "
    "alone ran. idle: the rest. last in: collectives in which this rank was the last one, of all that were recorded. "
    "cost: the time of a call in which each other rank did nothing but wait for this rank alone."
)
_SECONDS = ("step", "computing", "waiting", "sending", "idle")


def is_of_ranks(attachment: Attachment) -> bool:
    """Whether a tool has recorded several ranks of a case."""
    return any(name == "rank" for name, _ in attachment.series)


def blocks(attachments: Iterable[Attachment]) -> Iterator[Block]:
    """A table for each attachment with ranks, and below it what the traces say of them."""
    for attachment in attachments:
        if is_of_ranks(attachment):
            yield _table(attachment.case, dict(attachment.series))
            yield from map(Note, attachment.notes)


def _table(case: str, series: Mapping[str, Sequence[float]]) -> Table:
    waits = any(series["rank_last"]) or any(series["rank_waiting"])
    times = tuple(
        Column(
            "call ({unit})" if name == "step" else f"{name} ({{unit}})", tuple(series[f"rank_{name}"]), units.SECONDS
        )
        for name in _SECONDS
        if waits or name != "waiting"
    )
    columns = (
        text_column("rank", (f"{rank:.0f}" for rank in series["rank"])),
        *times,
        Column("last in", tuple(f"{count:.0f}" for count in series["rank_last"]), keep=4),
        Column("cost ({unit})", tuple(series["rank_cost"]), units.SECONDS, keep=3),
    )
    return Table(columns, f"{case}, by rank")
