"""What tools saw of the NVTX ranges of a case, as tables: a row for the ranges of a name, below the row around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness import units
from harness.model import Attachment, RangeProfile
from harness.report import rank_tables
from harness.report.kernel_names import cut
from harness.report.tree import Block, Column, Note, Table, text_column
from harness.units import Unit

MEANING = (
    "What profilers saw of NVTX ranges. A range lies in the range above it that has one point less. Figures are of one "
    "call. host: the time from the beginning of these ranges to their end on the host. median: the same of one range. "
    "kernels: the kernels that were launched in them, whenever they ran. share: their part of the time of all kernels."
)
_LONGEST_NAME = 60


def blocks(attachments: Iterable[Attachment]) -> Iterator[Block]:
    """A table for each attachment that has ranges, and what tools noted, once for all cases."""
    notes: dict[Note, None] = {}
    for attachment in attachments:
        if attachment.ranges:
            yield _table(attachment)
        if not rank_tables.is_of_ranks(attachment):  # whose notes stand below their tables
            notes |= dict.fromkeys(Note(note, "warning", attachment.tool) for note in attachment.notes)
    yield from notes


def _table(attachment: Attachment) -> Table:
    figures = [_figures(each, attachment) for each in attachment.ranges]

    def column(head: str, name: str, unit: Unit, keep: int) -> Column:
        return Column(head, tuple(own.get(name, "") for own in figures), unit, keep=keep)

    columns = (
        text_column("range", (_name(each, attachment) for each in attachment.ranges), code=True),
        Column("count", tuple(_counted(own, "count") for own in figures), keep=5),
        column("host ({unit})", "time", units.SECONDS, 6),
        column("median ({unit})", "median", units.SECONDS, 4),
        Column("kernels", tuple(_counted(own, "kernels") for own in figures), keep=3),
        column("kernel time ({unit})", "kernel_time", units.SECONDS, 7),
        column("share", "share", units.SHARE, 8),
    )
    about = attachment.case or "a program"
    return Table(tuple(column for column in columns if not column.is_empty), f"{about}, ranges by {attachment.tool}")


def _counted(figures: Mapping[str, float], name: str) -> str:
    return f"{figures[name]:.4g}" if name in figures else ""


def _is_case(each: RangeProfile, attachment: Attachment) -> bool:
    """Whether a range is the case itself, which has several calls."""
    return not each.depth and each.name == attachment.case


def _name(each: RangeProfile, attachment: Attachment) -> str:
    name = "(the whole)" if _is_case(each, attachment) else cut(each.name, _LONGEST_NAME)
    return "· " * each.depth + name


def _figures(each: RangeProfile, attachment: Attachment) -> dict[str, float]:
    """What a row shows, by name. The range of a case has several calls: its count and median aren't of a call."""
    found = {"count": each.count, **dict(each.values)}
    if _is_case(each, attachment):
        found.pop("count")
        found.pop("median", None)
    time = dict(attachment.values).get("time")
    if time and "kernel_time" in found:
        found["share"] = found["kernel_time"] / time
    return found
