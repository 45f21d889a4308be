"""What the machine can do, as tables, as figures in a few words, and as a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from harness import units
from harness.model import ComputePoint, Limits, StreamPoint
from harness.report.canvas import byte_axis, canvas, legend, peak_line, save
from harness.report.looks import SERIES
from harness.report.tree import Cell, Column, Facts, Table, text_column

_SAME_SIZE = 1.05
"""Streams of different mixes can't move exactly the same bytes; within this ratio they share a row."""


def mix(share: float) -> str:
    """The share of reads as read:write in small numbers: 0.67 -> '2:1'."""
    exact = Fraction(share).limit_denominator(8)
    return f"{exact.numerator}:{exact.denominator - exact.numerator}"


def by_mix(limits: Limits) -> dict[str, list[StreamPoint]]:
    """The best points of each mix by size, mixes with more reads first."""
    mixes: dict[str, list[StreamPoint]] = defaultdict(list)
    for point in sorted(limits.best, key=lambda point: -point.read_share):
        mixes[mix(point.read_share)].append(point)
    return dict(mixes)


def tables(limits: Limits) -> list[Table]:
    """Bandwidth of streams, operations a second and bandwidth of links; each only if it was measured."""
    made = [_streams(limits), _compute(limits), _links(limits)]
    return [table for table in made if table.columns[0].cells]


def _streams(limits: Limits) -> Table:
    """Best bandwidth: a row a size of bytes moved, a column a mix."""
    rows: list[list[StreamPoint]] = []
    for point in sorted(limits.best, key=lambda point: point.moved):
        if not rows or point.moved > _SAME_SIZE * rows[-1][0].moved:
            rows.append([])
        rows[-1].append(point)
    made = [Column("bytes moved", tuple(units.size(row[-1].moved, 3) for row in rows))]
    for name in by_mix(limits):
        found = [next((point for point in row if mix(point.read_share) == name), None) for row in rows]
        cells = tuple(point.bandwidth if point else "" for point in found)
        made.append(Column(name, cells, units.BANDWIDTH))
    return Table(tuple(made), "Best bandwidth in {unit} by bytes moved and mix of reads and writes (read:write)")


def _compute(limits: Limits) -> Table:
    """The best matrix product of each type, in short and after seconds of load."""
    kinds = list(dict.fromkeys(point.kind for point in limits.compute))
    burst = [_fastest(limits, kind, "burst") for kind in kinds]
    settled = [_fastest(limits, kind, "settled") for kind in kinds]
    shapes = [f"{point.m} x {point.n} x {point.k}, {point.way}" if point else "" for point in burst]
    made = (
        text_column("type", kinds),
        Column("burst", tuple(map(_rate, burst)), units.OPERATIONS),
        Column("settled", tuple(map(_rate, settled)), units.OPERATIONS),
        text_column("product", shapes, keep=1),
    )
    return Table(
        made, "Best operations a second in {unit} by type, in short (burst) and after seconds of load (settled)"
    )


def _fastest(limits: Limits, kind: str, state: str) -> ComputePoint | None:
    own = [point for point in limits.compute if point.kind == kind and point.state == state]
    return max(own, key=lambda point: point.rate, default=None)


def _rate(point: ComputePoint | None) -> Cell:
    return point.rate if point else ""


def _links(limits: Limits) -> Table:
    """The best bandwidth at which each device sends, by the number of devices that send at once."""
    worlds = sorted({point.world for point in limits.links})
    best = [max((p for p in limits.links if p.world == world), key=lambda p: p.bandwidth) for world in worlds]
    made = (
        Column("world", tuple(map(str, worlds))),
        Column("{unit}", tuple(point.bandwidth for point in best), units.BANDWIDTH),
        Column("bytes sent", tuple(units.size(point.sent, 3) for point in best)),
        text_column("way", (point.way for point in best)),
    )
    return Table(made, "Best bandwidth at which each device sends to another one, all devices at the same time")


def summary(limits: Limits) -> Facts:
    """The figures that a reader looks for first."""
    return Facts(tuple(_summary(limits)))


def _summary(limits: Limits) -> Iterator[tuple[str, str]]:
    peak = max((point for point in limits.points if point.is_copy), key=lambda p: p.bandwidth, default=None)
    if peak is not None:
        yield "library copy (the peak)", f"{units.rate(peak.bandwidth)} at {units.size(peak.moved, 3)}"
    for name, points in by_mix(limits).items():
        best = max(points, key=lambda point: point.bandwidth)
        yield f"read:write {name}", f"{units.rate(best.bandwidth)} at {units.size(best.moved, 3)}, {best.way}"
    if text := drift(limits):
        yield "at the end of the run", text


def drift(limits: Limits) -> str:
    """How much the memory changed over the run: '0.20% slower'; empty if it wasn't measured again."""
    if limits.drift is None:
        return ""
    return f"{units.percent(abs(limits.drift), 2)} {'slower' if limits.drift > 0 else 'faster'}"


def draw(limits: Limits, path: Path) -> list[Path]:
    """Bandwidth over bytes moved, a line a mix, and the library copy's peak; as SVG or PNG by the suffix."""
    with canvas(2.7, "Memory ceilings") as (drawing, axes):
        for (name, points), look in zip(by_mix(limits).items(), SERIES, strict=False):
            bandwidths = [point.bandwidth / 1e9 for point in points]
            axes.plot([point.moved for point in points], bandwidths, label=name, **look.line)
        peak_line(axes.axhline, limits.peak)
        byte_axis(axes)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("bytes read and written")
        axes.set_ylabel("bandwidth (GB/s)")
        axes.grid()
        legend(drawing, axes, title="read:write")
        return save(drawing, path)


def write_points(limits: Limits, folder: Path) -> list[Path]:
    """Write everything that was tried, not only the best: peak.csv (streams), peak_compute.csv, peak_links.csv."""
    best = set(limits.best)
    streams = [
        {**asdict(point), "moved": point.moved, "mix": mix(point.read_share), "bandwidth": point.bandwidth,
         "best": when == "start" and point in best, "when": when}
        for when, points in (("start", limits.points), ("end", limits.end))
        for point in points
    ]  # fmt: skip
    links = [{**asdict(point), "bandwidth": point.bandwidth} for point in limits.links]
    made = {"peak.csv": streams, "peak_compute.csv": list(map(asdict, limits.compute)), "peak_links.csv": links}
    return [_write(rows, folder / name) for name, rows in made.items() if rows]


def _write(rows: list[dict[str, Any]], path: Path) -> Path:
    import pandas as pd

    pd.DataFrame(rows).to_csv(path, index=False, float_format="%.12g", lineterminator="\n")
    return path
