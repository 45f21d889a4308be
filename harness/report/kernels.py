"""What tools saw of each kernel of a case, as tables: one for each case and tool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness import units
from harness.model import COUNTERS, PIPE, STALL, Attachment, KernelProfile
from harness.report.kernel_names import kernel_name
from harness.report.tree import Column, Table, text_column
from harness.units import Unit

_UNITS: dict[str, Unit] = {
    "s": units.SECONDS,
    "B": units.BYTES,
    "share": units.SHARE,
    "": units.PLAIN,
}
_SHOWN = (
    "time", "read_bytes", "written_bytes", "l2_hit", "dram_active", "issue_active", "occupancy", "registers",
    "shared_bytes", "local_bytes", "waves", "grid", "block",
)  # fmt: skip
"""The figures of a table, the most important first. The rest is in the JSON."""
_LONGEST_NAME = 48
_REASONS = 2  # stall reasons, and pipes, that a table names


def tables(attachments: Iterable[Attachment]) -> Iterator[Table]:
    """A table for each attachment that has kernels, with a row for each of them."""
    for attachment in attachments:
        if attachment.kernels:
            yield _table(attachment)


def _table(attachment: Attachment) -> Table:
    kernels = attachment.kernels
    values = [dict(kernel.values) for kernel in kernels]
    columns = [
        text_column("kernel", (kernel_name(kernel.name, _LONGEST_NAME) for kernel in kernels), code=True),
        Column("launches", tuple(f"{k.launches:.4g}" for k in kernels), keep=len(_SHOWN) + 1),
    ]
    for place, name in enumerate(_SHOWN):
        cells = tuple(own.get(name, "") for own in values)
        counter = COUNTERS[name]
        head = f"{counter.title} ({{unit}})" if counter.unit == "s" else counter.title
        keep = len(_SHOWN) - place
        columns.append(Column(head, cells, _UNITS[counter.unit], keep=keep, hint=f"{counter.title}: {counter.hint}"))
    columns.append(text_column("stalls", (_largest(kernel, STALL) for kernel in kernels), keep=3))
    columns.append(text_column("pipes", (_largest(kernel, PIPE) for kernel in kernels), keep=2))
    about = attachment.case or "a program"
    return Table(tuple(column for column in columns if not column.is_empty), f"{about}, by {attachment.tool}")


def _largest(kernel: KernelProfile, start: str) -> str:
    """The largest of the figures whose names begin so, such as 'long_scoreboard 61%, wait 12%'."""
    found: Sequence[tuple[str, float]] = [(n.removeprefix(start), v) for n, v in kernel.values if n.startswith(start)]
    largest = sorted(found, key=lambda pair: -pair[1])[:_REASONS]
    return ", ".join(f"{name} {units.percent(value, 0)}" for name, value in largest)
