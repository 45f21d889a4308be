"""What the memory can do, as a table and a plot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from harness import units
from harness.model import Ceilings, Machine, StreamPoint
from harness.report._canvas import LOOKS, byte_axis, canvas, legend, peak_line, save
from harness.report._columns import Column
from harness.report._facts import machine as facts_of
from harness.report._page import render

_SAME_SIZE = 1.05
"""Streams of different mixes can't move exactly the same bytes; within this ratio they share a row."""


def mix(share: float) -> str:
    """The share of reads as read:write in small numbers: 0.67 -> '2:1'."""
    exact = Fraction(share).limit_denominator(8)
    return f"{exact.numerator}:{exact.denominator - exact.numerator}"


def by_mix(ceilings: Ceilings) -> dict[str, list[StreamPoint]]:
    """The best points of each mix by size, mixes with more reads first."""
    mixes: dict[str, list[StreamPoint]] = defaultdict(list)
    for point in sorted(ceilings.best, key=lambda point: -point.read_share):
        mixes[mix(point.read_share)].append(point)
    return dict(mixes)


def columns(ceilings: Ceilings) -> list[Column]:
    """Best bandwidth in GB/s: a row a size of bytes moved, a column a mix."""
    rows: list[list[StreamPoint]] = []
    for point in sorted(ceilings.best, key=lambda point: point.moved):
        if not rows or point.moved > _SAME_SIZE * rows[-1][0].moved:
            rows.append([])
        rows[-1].append(point)
    made = [Column("bytes moved", tuple(units.size(row[-1].moved, 3) for row in rows))]
    for name in by_mix(ceilings):
        found = [next((point for point in row if mix(point.read_share) == name), None) for row in rows]
        made.append(Column(name, tuple(units.gigabytes(point.bandwidth) if point else "" for point in found)))
    return made


def summary(ceilings: Ceilings) -> list[tuple[str, str]]:
    """The figures that a reader looks for first, as labels and values."""
    peak = max((point for point in ceilings.points if point.is_copy), key=lambda p: p.bandwidth, default=None)
    found = []
    if peak is not None:
        found.append(("library copy (the peak)", f"{units.rate(peak.bandwidth)} at {units.size(peak.moved, 3)}"))
    for name, points in by_mix(ceilings).items():
        best = max(points, key=lambda point: point.bandwidth)
        found.append((f"read:write {name}", f"{units.rate(best.bandwidth)} at {units.size(best.moved, 3)}, {best.way}"))
    if text := drift(ceilings):
        found.append(("at the end of the run", text))
    return found


def drift(ceilings: Ceilings) -> str:
    """How much the memory changed over the run: '0.20% slower'; empty if it wasn't measured again."""
    if ceilings.drift is None:
        return ""
    return f"{units.percent(abs(ceilings.drift), 2)} {'slower' if ceilings.drift > 0 else 'faster'}"


def draw(machine: Machine, ceilings: Ceilings, path: Path) -> list[Path]:
    """Bandwidth over bytes moved, a line a mix, and the library copy's peak; as SVG and PNG."""
    with canvas(2.7, f"Memory ceilings, {machine.name}") as (drawing, axes):
        for (name, points), look in zip(by_mix(ceilings).items(), LOOKS, strict=False):
            bandwidths = [point.bandwidth / 1e9 for point in points]
            axes.plot([point.moved for point in points], bandwidths, label=name, **look.line)
        peak_line(axes.axhline, ceilings.peak)
        byte_axis(axes)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes read and written")
        axes.set_ylabel("bandwidth (GB/s)")
        axes.grid()
        legend(drawing, axes, title="read:write")
        return save(drawing, path)


def write(machine: Machine, ceilings: Ceilings, folder: Path) -> list[Path]:
    """peak.md, peak.csv, peak.svg and peak.png."""
    page, table = folder / "peak.md", folder / "peak.csv"
    text = render("peak.md.j2", summary=summary(ceilings), ceilings=columns(ceilings), machine=facts_of(machine))
    page.write_text(text, encoding="utf-8")
    _write_points(ceilings, table)
    return [page, table, *draw(machine, ceilings, folder / "peak.png")]


def _write_points(ceilings: Ceilings, path: Path) -> None:
    """Every stream that was tried, not only the best ones."""
    import pandas as pd

    best = set(ceilings.best)
    rows = [
        {**asdict(point), "moved": point.moved, "mix": mix(point.read_share), "bandwidth": point.bandwidth,
         "best": when == "start" and point in best, "when": when}
        for when, points in (("start", ceilings.points), ("end", ceilings.end))
        for point in points
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.12g", lineterminator="\n")
