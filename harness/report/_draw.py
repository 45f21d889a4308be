"""Drawing of the figures that `_figures` plans, one function a layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.report._canvas import LOOKS, WIDE, WIDTH, Look, canvas, legend, peak_line, save, variant_lines
from harness.report._figures import Figure, size_label

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

_BAND = 0.82
"""Width of a group of bars; the rest of 1 is the gap to the next."""
_MOST_TICKS = 8
_FEWEST_POWERS = 4
_CEILING: dict[str, Any] = {"color": "black", "linewidth": 1.4, "label": "ceiling"}
_WALL: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 15, "markeredgewidth": 1.8, "zorder": 3.5}
_AXES = {
    "effective_bandwidth": ("effective bandwidth (GB/s)", 1e9),
    "items_per_s": ("items a second (millions)", 1e6),
    "time_s": ("time (us), shorter is better", 1e-6),
}


def draw(figure: Figure, peak: float | None, path: Path) -> list[Path]:
    """Draw one figure and save it as SVG and PNG. `peak` is the library copy's bandwidth in B/s."""
    layout = {"bars": _bars, "lines": _lines, "curve": _curve, "variants": _variants, "ranking": _ranking}[
        figure.layout
    ]
    with canvas(_height(figure), figure.title, WIDE if figure.layout == "variants" else WIDTH) as (drawing, axes):
        layout(axes, figure)
        if figure.quantity == "effective_bandwidth":
            peak_line(axes.axvline if figure.layout == "ranking" else axes.axhline, peak)
        legend(drawing, axes)
        return save(drawing, path)


def _height(figure: Figure) -> float:
    """Inches."""
    if figure.layout == "ranking":
        return 0.85 + 0.13 * len(figure.rows)
    if figure.layout == "variants":
        return 3.6
    return 2.6 + 0.1 * max(label.count("\n") for label in figure.labels.values())


def _bars(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """Groups of bars, a shape each, with its ceiling across the group."""
    label, unit = _AXES[figure.quantity]
    places = {shape: place for place, shape in enumerate(dict.fromkeys(figure.rows["shape"]))}
    present = set(figure.rows["series"])
    shown = [series for series in figure.series if series in present]
    width = _BAND / len(shown)
    for index, series in enumerate(shown):
        rows = figure.rows[figure.rows["series"] == series]
        middles = [places[shape] - _BAND / 2 + (index + 0.5) * width for shape in rows["shape"]]
        look = _look(figure, series)
        axes.bar(middles, rows[figure.quantity] / unit, min(0.92 * width, 0.3), label=series, **look.bar)
        _statuses(axes, zip(middles, rows["status"], strict=True))
    for shape, ceiling in _ceilings(figure).items():
        middle = places[str(shape)]
        axes.hlines(ceiling / unit, middle - _BAND / 2, middle + _BAND / 2, **_CEILING)
    axes.set_xticks(range(len(places)), [figure.labels[shape] for shape in places])
    axes.set_xlim(-0.55, len(places) - 0.45)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel(figure.axis)
    axes.set_ylabel(label)
    axes.grid(axis="y")


def _lines(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """A line a variant over the symbol that varies; the ceiling is one too."""
    _over_sizes(axes, figure)
    _from_zero(axes)


def _curve(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """The same over an expression; with Little's law on two logarithmic axes, where it is a straight line."""
    _over_sizes(axes, figure)
    timed = _by_size(figure).dropna(subset=["effective_bandwidth"])
    if figure.curve and figure.curve.littles_law and figure.multiprocessors and len(timed):
        _littles_law(axes, timed, figure.multiprocessors)
    else:
        _from_zero(axes)


def _from_zero(axes: matplotlib.axes.Axes) -> None:
    """The whole of the bandwidth, with room for the markers at the top."""
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])


def _over_sizes(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """Every series and the ceiling, as lines; as points where several shapes stand at one place."""
    unit = _AXES[figure.quantity][1]
    rows = _by_size(figure)
    for index, series in enumerate(figure.series):
        own = rows[rows["series"] == series]
        # Points that coincide are seen around each other.
        points = {"linestyle": "none", "markersize": 7.5 - 5 * index / len(figure.series)}
        look = _look(figure, series).line | (points if own["size"].duplicated().any() else {})
        axes.plot(own["size"], own[figure.quantity] / unit, label=series, **look)
    _ceiling_line(axes, figure)
    failed = sorted(set(rows["size"][rows["status"] != "ok"]))
    if failed:
        bottom = axes.get_xaxis_transform()
        axes.plot(failed, [0] * len(failed), "kx", markersize=4, clip_on=False, transform=bottom, label="no result")
    _axes_of_sizes(axes, figure)


def _variants(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """A line a variant over the curve's expression; it breaks where there is no result, and a bar is where it ends."""
    unit = _AXES[figure.quantity][1]
    rows = _by_size(figure)
    for series, look in variant_lines(figure.series).items():
        own = rows[rows["series"] == series]
        timed = own.dropna(subset=[figure.quantity])
        axes.plot(own["size"], own[figure.quantity] / unit, label=series + _reach(own, timed), **look)
        ends = timed[timed["size"].isin(_ends(own, timed))]
        axes.plot(ends["size"], ends[figure.quantity] / unit, color=look["color"], **_WALL)
    _ceiling_line(axes, figure)
    _axes_of_sizes(axes, figure)
    _from_zero(axes)


def _ends(tried: pd.DataFrame, timed: pd.DataFrame) -> set[int]:
    """The first and the last size with a result, each where others were tried beyond it."""
    reached = {timed["size"].min(), timed["size"].max()}
    return reached - {tried["size"].min(), tried["size"].max()}


def _reach(tried: pd.DataFrame, timed: pd.DataFrame) -> str:
    """What the legend says of a variant that doesn't reach both ends."""
    if timed.empty:
        return ": no result"
    first, last = timed["size"].min(), timed["size"].max()
    words = [f"from {first}"] if first > tried["size"].min() else []
    words += [f"up to {last}"] if last < tried["size"].max() else []
    return f", {' '.join(words)}" if words else ""


def _ceiling_line(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    ceilings = _ceilings(figure)
    if len(ceilings):
        by_size = ceilings.groupby(ceilings.index.map(dict(figure.swept))).max()
        axes.plot(by_size.index, by_size / _AXES[figure.quantity][1], zorder=1.8, **_CEILING)


def _axes_of_sizes(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    _size_axis(axes, sorted(set(figure.swept.values())), _MOST_TICKS * (2 if figure.layout == "variants" else 1))
    axes.set_xlabel(figure.axis)
    axes.set_ylabel(_AXES[figure.quantity][0])
    axes.grid()


def _by_size(figure: Figure) -> pd.DataFrame:
    return figure.rows.assign(size=figure.rows["shape"].map(dict(figure.swept))).sort_values("size", kind="stable")


def _size_axis(axes: matplotlib.axes.Axes, sizes: Sequence[int], most: int) -> None:
    """Logarithmic, with powers of two where they suffice; linear if there is a zero."""
    from matplotlib.ticker import MaxNLocator

    if sizes[0] == 0:
        axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 4, 8, 10], integer=True))
        return
    powers = [size for size in sizes if size.bit_count() == 1]
    shown = powers if len(sizes) > most and len(powers) >= _FEWEST_POWERS else sizes
    shown = shown[:: math.ceil(len(shown) / most)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, [size_label(size) for size in shown])
    axes.minorticks_off()


def _littles_law(axes: matplotlib.axes.Axes, timed: pd.DataFrame, multiprocessors: int) -> None:
    """Bandwidth at the latency of the fewest bytes in flight, up to that of the fastest result."""
    fewest = timed[timed["size"] == timed["size"].min()]
    first = fewest.loc[fewest["time_s"].idxmin()]
    latency = first["size"] * multiprocessors * first["time_s"] / first["read_bytes"]
    slope, most = first["effective_bandwidth"] / first["size"], timed["effective_bandwidth"].max()
    sizes = [first["size"], most / slope]
    text = f"Little's law, {latency * 1e9:.0f} ns"
    axes.plot(sizes, [slope * size / 1e9 for size in sizes], "k:", linewidth=1.2, label=text)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")


def _ranking(axes: matplotlib.axes.Axes, figure: Figure) -> None:
    """One bar a row, named at its side and valued at its end: for more variants than there are looks."""
    label, unit = _AXES[figure.quantity]
    values = figure.rows[figure.quantity] / unit
    axes.barh(range(len(values)), values, 0.75, **LOOKS[1].bar | {"hatch": ""})
    for place, (value, status) in enumerate(zip(values, figure.rows["status"], strict=True)):
        end, text = (0, _words(status)) if math.isnan(value) else (value, units.significant(value))
        axes.text(end, place, f" {text}", va="center", fontsize=6)
    for ceiling in _ceilings(figure):
        axes.axvline(ceiling / unit, **_CEILING)
    axes.set_yticks(range(len(values)), figure.rows["series"])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label)
    axes.grid(axis="x")


def _look(figure: Figure, series: str) -> Look:
    """The same series looks the same in all figures of a scenario."""
    return LOOKS[figure.series.index(series) % len(LOOKS)]


def _ceilings(figure: Figure) -> pd.Series[float]:
    """The ceiling of each shape in B/s, without shapes that have none; empty if the figure shows something else."""
    ceilings = figure.rows.groupby("shape", sort=False)["ceiling_bandwidth"].first().dropna()
    return ceilings if figure.quantity == "effective_bandwidth" else ceilings.iloc[:0]


def _statuses(axes: matplotlib.axes.Axes, bars: Iterable[tuple[float, str]]) -> None:
    """In the place of a bar that isn't there, the status of its case."""
    for middle, status in bars:
        if status != "ok":
            axes.text(middle, 0, f" {_words(status)}", rotation=90, ha="center", va="bottom", fontsize=5.5)


def _words(status: str) -> str:
    return status.replace("_", " ")
