"""Which figures a run gets, and what each shows. Nothing is drawn here: the report links what `plots` draws."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

from harness.model import Curve, Run, Scenario
from harness.report._frame import by_scenario, frame, sizes_of
from harness.report._sweep import places

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Layout = Literal["bars", "lines", "curve", "variants", "ranking"]
Shapes = dict[str, dict[str, int]]

FOLDER = "plots"
MOST_FIGURES = 10
MOST_SERIES = 8
"""As many as have a colour, a hatch and a marker of their own; beyond that each bar carries its name."""
_MOST_VARIANTS = 9
"""Of a figure as wide as the page."""
_MOST_BARS = 40
_MOST_SHAPES = 8
_MOST_RANKED = 40
_LEAST_SWEPT = 4
_LABEL_CHARACTERS = 52
"""What fits side by side under the axes of a figure half a page wide."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture of one scenario and dtype.

    rows: of the frame, with a column `series`: the variant, or what else is told apart. series: all of the scenario's,
    so that each looks the same in every figure. quantity: the column to show. labels: what to write for each shape;
    `swept`: where it stands on the axis of lines and curves. axis: what varies there, or the sizes that all shapes
    share. curve: the scenario's. turn: the figure's place among the scenario's. multiprocessors: the machine's.
    """

    scenario: str
    name: str
    title: str
    layout: Layout
    rows: pd.DataFrame
    quantity: str
    labels: Mapping[str, str]
    axis: str
    series: tuple[str, ...]
    swept: Mapping[str, int]
    curve: Curve | None = None
    turn: int = 0
    multiprocessors: int = 0

    @property
    def alt(self) -> str:
        """What the figure shows, for those who can't see it; without matplotlib's formulas."""
        by = f"over {self.axis}" if self.layout in ("curve", "variants") else "by variant and shape"
        title = re.sub(r"[${}]", "", self.title)  # 2^27 as one types it
        return f"{title}: {self.quantity.removesuffix('_s').replace('_', ' ')} {by}"

    @property
    def png(self) -> str:
        """Path in the run's folder."""
        return f"{FOLDER}/{self.name}.png"


@lru_cache(maxsize=1)
def plan(run: Run) -> tuple[list[Figure], int]:
    """The figures of a run, and how many more there would be without a limit.

    Where there are too many, each scenario keeps its first ones.
    """
    sizes = sizes_of(run)
    wanted: list[Figure] = []
    for scenario, rows in by_scenario(run, frame(run)):
        figures = _of_scenario(scenario, rows, sizes)
        count = run.header.machine.multiprocessors
        wanted += [replace(figure, turn=turn, multiprocessors=count) for turn, figure in enumerate(figures)]
    kept = {figure.name for figure in sorted(wanted, key=lambda figure: figure.turn)[:MOST_FIGURES]}
    return [figure for figure in wanted if figure.name in kept], len(wanted) - len(kept)


def _of_scenario(scenario: Scenario, table: pd.DataFrame, shapes: Shapes) -> Iterator[Figure]:
    table = table.assign(series=_series(scenario.curve, table, shapes))
    series = tuple(dict.fromkeys(table["series"]))
    for (dtype, cache), rows in table.groupby(["dtype", "cache"], sort=False):
        quantity = next((q for q in ("effective_bandwidth", "items_per_s", "time_s") if rows[q].notna().any()), None)
        if quantity is None:
            continue
        kind = [str(dtype)] if cache == "cold" else [str(dtype), str(cache)]
        name = re.sub(r"[^\w.-]+", "_", "-".join([scenario.name, *kind]))
        title = " ".join([rows["op"].iloc[0], *kind])
        own = {shape: shapes[shape] for shape in dict.fromkeys(rows["shape"])}
        varying = _varying(own)
        fixed = ", ".join(f"{s}={size_label(n)}" for s, n in next(iter(own.values())).items() if s not in varying)
        labels = _labels(own, varying)
        figure = Figure(scenario.name, name, title, "bars", rows, quantity, labels, fixed, series, {}, scenario.curve)
        yield from _numbered(list(_pages(figure, own, varying)))


def _series(curve: Curve | None, table: pd.DataFrame, shapes: Shapes) -> pd.Series[str]:
    """The variant, or the size of the symbol that a curve tells apart, or both."""
    if curve is None or not curve.by:
        return table["variant"]
    sizes = table["shape"].map(lambda shape: f"{curve.by}={size_label(shapes[shape][curve.by])}")
    return sizes if table["variant"].nunique() == 1 else table["variant"] + ", " + sizes


def _pages(figure: Figure, shapes: Shapes, varying: Sequence[str]) -> Iterator[Figure]:
    """The figure in parts that can be read, in the layout that suits it."""
    if figure.curve is not None:
        over = places(figure.curve, shapes)
        alone = figure.curve.of_variants and len(set(over.values())) == len(over)
        yield from _swept(figure, "variants" if alone else "curve", figure.curve.label, over)
    elif len(varying) == 1 and len(shapes) >= _LEAST_SWEPT:
        symbol = varying[0]
        yield from _swept(figure, "lines", symbol, {shape: sizes[symbol] for shape, sizes in shapes.items()})
    elif figure.rows["series"].nunique() > MOST_SERIES:
        yield from _rankings(figure)
    else:
        yield from _groups_of_bars(figure, list(shapes))


def _swept(figure: Figure, layout: Layout, axis: str, swept: Mapping[str, int]) -> Iterator[Figure]:
    title = f"{figure.title}, {figure.axis}" if figure.axis else figure.title
    most = _MOST_VARIANTS if layout == "variants" else MOST_SERIES
    for part in _parts(list(dict.fromkeys(figure.rows["series"])), most):
        rows = figure.rows[figure.rows["series"].isin(part)]
        yield replace(figure, layout=layout, rows=rows, swept=swept, axis=axis, title=title, series=part)


def _rankings(figure: Figure) -> Iterator[Figure]:
    for shape, own in figure.rows.groupby("shape", sort=False):
        ordered = own.sort_values(figure.quantity, ascending=figure.quantity == "time_s", kind="stable")
        for part in _parts(range(len(ordered)), _MOST_RANKED):
            page = ordered.iloc[part[0] : part[-1] + 1]
            yield replace(figure, layout="ranking", rows=page, title=f"{figure.title}, {shape}")


def _groups_of_bars(figure: Figure, shapes: Sequence[str]) -> Iterator[Figure]:
    widest = max(len(line) for label in figure.labels.values() for line in _plain(label).split("\n"))
    bars = figure.rows["series"].nunique()
    most = min(_MOST_SHAPES, _MOST_BARS // bars, max(1, _LABEL_CHARACTERS // (widest + 1)))
    for part in _parts(shapes, most):
        yield replace(figure, rows=figure.rows[figure.rows["shape"].isin(part)])


def _numbered(pages: list[Figure]) -> list[Figure]:
    if len(pages) == 1:
        return pages
    return [
        replace(page, name=f"{page.name}-{number}", title=f"{page.title} ({number} of {len(pages)})")
        for number, page in enumerate(pages, 1)
    ]


def _parts(items: Sequence[T], most: int) -> Iterator[tuple[T, ...]]:
    """`items` in as few parts of at most `most` as will do, of about the same length."""
    count = math.ceil(len(items) / most)
    for index in range(count):
        yield tuple(items[index * len(items) // count : (index + 1) * len(items) // count])


def _varying(shapes: Shapes) -> list[str]:
    first = next(iter(shapes.values()))
    return [symbol for symbol in first if len({sizes[symbol] for sizes in shapes.values()}) > 1]


def _labels(shapes: Shapes, varying: Sequence[str]) -> dict[str, str]:
    """What tells a shape from the others, a symbol a line; nothing where there is only one."""
    return {shape: "\n".join(f"{s}={size_label(sizes[s])}" for s in varying) for shape, sizes in shapes.items()}


def size_label(value: int) -> str:
    """A size in a few characters, powers of two as such (in matplotlib's notation for formulas)."""
    if value < 10_000:
        return str(value)
    if value.bit_count() == 1:
        return f"$2^{{{value.bit_length() - 1}}}$"
    scale, prefix = next(p for p in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= p[0])
    return f"{value / scale:.4g}{prefix}"


def _plain(label: str) -> str:
    return re.sub(r"[${}^]", "", label)
