"""How a table on a page is written, for the scripts that make tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from committed import Group

KERNELS = "../reports/"
"""The way from kernels/README.md to the reports."""
SAME = 0.01
"""Times this close to each other are called the same."""


def table(head: Sequence[str], rows: Iterator[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a table in Markdown. left: how many columns are aligned to the left."""
    rule = ["---" if place < left else "--:" for place in range(len(head))]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *rows)]


def origin(groups: Sequence[Group], up: str = "") -> str:
    """Which machine, which torch, which runs of which day: a table's last line."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for group in groups:
        machine, day = group.run.header.machine.name, group.run.header.started[:10]
        found.setdefault((machine, group.torch), {})[group.folder] = day
    return " ".join(
        f"{machine}, torch {torch}; runs: "
        + ", ".join(f"[{name}]({up}h200/{name}/report.md) of {day}" for name, day in runs.items())
        + "."
        for (machine, torch), runs in found.items()
    )


def bold_best(cells: Sequence[str], values: Sequence[float | None]) -> list[str]:
    """The cells with the best in bold. values: their figures, where more is better."""
    best = max(filter(None, values), default=None)
    return [f"**{cell}**" if value and value == best else cell for cell, value in zip(cells, values, strict=True)]
