"""Drawing of the plots that `_figures` plans, one function a layout."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.metrics import METRICS
from harness.report import roofline_plot
from harness.report.canvas import LOOKS, WIDE, WIDTH, Look, canvas, legend, peak_line, save, variant_lines
from harness.report.plotting import Layout, Plot, size_label
from harness.report.sweeps import over_world

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

_AXIS_CHARACTERS = 48
"""Characters of a line of the label below bars; the axes are narrower than the figure."""
_BAND = 0.82
"""Width of a group of bars, where groups are 1 apart: the rest is the gap to the next group."""
_MOST_TICKS = 8
_FEWEST_POWERS = 4
_DECADES = 1e4
"""Largest over smallest value of lines above which their axis is logarithmic. Below it, what matters is how near lines
come to the ceiling, which a linear axis shows best."""
_CEILING: dict[str, Any] = {"color": "black", "linewidth": 1.4}
_WIDE = ("variants", "roofline")
"""Layouts that are as wide as the page."""
_BESIDE = 0.03
"""Distance of points that stand side by side, as a part of the axis."""
_ROW = 0.19
"""Height in inches of a row with two dots."""
_TIMES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "time": ("device time (graph)", -0.2, {"marker": "o", "color": "#444444"}),
    "call_time": ("call time (no graph)", 0.2, {"marker": "D", "color": "white"}),
}
"""The label of each time, the place of its dot in a row, and its look."""
_DOT: dict[str, Any] = {"linestyle": "none", "markersize": 4, "markeredgecolor": "black", "markeredgewidth": 0.6}
_ROOM = 0.2
"""Room for the numbers beside dots, as a part of the axis."""
_WALL: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 15, "markeredgewidth": 1.8, "zorder": 3.5}


def draw(plot: Plot, peak: float | None, path: Path) -> list[Path]:
    """Draw one plot and save it as SVG. `peak` is the library copy's bandwidth in B/s."""
    with canvas(_height(plot), plot.title, WIDE if plot.layout in _WIDE else WIDTH) as (drawing, axes):
        _LAYOUTS[plot.layout](axes, plot)
        # What a bandwidth is compared with may be another limit than the memory's.
        if plot.metric.unit is units.BANDWIDTH and plot.metric.limit in ("", "ceiling_bandwidth"):
            peak_line(axes.axvline if plot.layout == "ranking" else axes.axhline, peak)
        legend(drawing, axes)
        return save(drawing, path)


def _axis(plot: Plot) -> tuple[str, float]:
    """What is written on the axis of the metric, and how much one of its unit is in SI units."""
    noun = next(filter(None, plot.rows["item"]), "")
    unit, scale = plot.metric.unit.axis([*plot.rows[plot.metric.name].dropna()], noun)
    shorter = ", lower is better" if plot.metric.better == "lower" else ""
    return f"{plot.metric.title}{f' ({unit})' if unit else ''}{shorter}", scale


def _height(plot: Plot) -> float:
    """Height of the plot in inches."""
    if plot.layout == "ranking":
        return 0.85 + 0.13 * len(plot.rows)
    if plot.layout == "calls":
        return 0.95 + _ROW * (len(plot.rows) + plot.rows["setting"].nunique())
    if plot.layout in _WIDE:
        return 3.6 if plot.layout == "variants" else 3.2
    return 2.6 + 0.1 * max(label.count("\n") for label in plot.labels.values())


def _bars(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """A group of bars for each setting, with the setting's ceiling as a line across the group."""
    text, unit = _axis(plot)
    places = {name: place for place, name in enumerate(dict.fromkeys(plot.rows["setting"]))}
    present = set(plot.rows["series"])
    shown = [series for series in plot.series if series in present]
    width = _BAND / len(shown)
    for index, series in enumerate(shown):
        rows = plot.rows[plot.rows["series"] == series]
        middles = [places[name] - _BAND / 2 + (index + 0.5) * width for name in rows["setting"]]
        look = _look(plot, series)
        axes.bar(middles, rows[plot.metric.name] / unit, min(0.92 * width, 0.3), label=series, **look.bar)
        _statuses(axes, zip(middles, rows["status"], strict=True))
    for name, ceiling in _ceilings(plot).items():
        middle = places[str(name)]
        axes.hlines(ceiling / unit, middle - _BAND / 2, middle + _BAND / 2, **_ceiling_look(plot))
    axes.set_xticks(range(len(places)), [plot.labels[name] for name in places])
    axes.set_xlim(-0.55, len(places) - 0.45)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("\n".join(textwrap.wrap(plot.axis, _AXIS_CHARACTERS)))
    axes.set_ylabel(text)
    axes.grid(axis="y")


def _lines(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """A line for each variant, and one for the ceiling, over the symbol that varies."""
    _over_sizes(axes, plot)
    _metric_axis(axes, plot)


def _curve(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Lines over an expression. With Little's law both axes are logarithmic, so that the law is a straight line."""
    _over_sizes(axes, plot)
    timed = _by_size(plot).dropna(subset=["bandwidth"])
    if plot.curve and plot.curve.littles_law and plot.metric.name == "bandwidth" and plot.multiprocessors:
        _littles_law(axes, timed, plot.multiprocessors)
    else:
        _metric_axis(axes, plot)


def _metric_axis(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Logarithmic where the values span many decades: on a linear axis the smaller ones would all lie on its foot."""
    values = plot.rows[plot.metric.name].dropna()
    if values.min() > 0 and values.max() > _DECADES * values.min():
        axes.set_yscale("log")
        roofline_plot.plain_ticks(axes.yaxis)
        axes.set_ylabel(f"{axes.get_ylabel()}, logarithmic")
    else:
        _from_zero(axes)


def _from_zero(axes: matplotlib.axes.Axes) -> None:
    """Start the axis at zero, and leave space for the markers at the top."""
    axes.set_ylim(0, 1.04 * axes.get_ylim()[1])


def _over_sizes(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Every series and the ceiling, as lines; as points where several settings stand at one place."""
    _, unit = _axis(plot)
    rows = _by_size(plot)
    for index, series in enumerate(plot.series):
        own = rows[rows["series"] == series]
        # Points have different sizes, so that points that coincide stay visible.
        points = {"linestyle": "none", "markersize": 7.5 - 5 * index / len(plot.series)}
        look = _look(plot, series).line | (points if own["size"].duplicated().any() else {})
        axes.plot(own["size"], own[plot.metric.name] / unit, label=series, **look)
    _ceiling_line(axes, plot)
    failed = sorted(set(rows["size"][rows["status"] != "ok"]))
    if failed:
        bottom = axes.get_xaxis_transform()
        axes.plot(failed, [0] * len(failed), "kx", markersize=4, clip_on=False, transform=bottom, label="no result")
    _axes_of_sizes(axes, plot)


def _variants(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """A line for each variant over the curve's expression. It breaks where there is no result; a bar marks its end."""
    _, unit = _axis(plot)
    rows = _by_size(plot)
    for series, look in variant_lines(plot.series, plot.roles).items():
        own = rows[rows["series"] == series]
        timed = own.dropna(subset=[plot.metric.name])
        axes.plot(own["size"], own[plot.metric.name] / unit, label=series + _reach(own, timed), **look)
        ends = timed[timed["size"].isin(_ends(own, timed))]
        axes.plot(ends["size"], ends[plot.metric.name] / unit, color=look["color"], **_WALL)
    _ceiling_line(axes, plot)
    _axes_of_sizes(axes, plot)
    _metric_axis(axes, plot)


def _world(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Points over the number of devices, side by side since they differ little, each beside the ideal of its number."""
    _, unit = _axis(plot)
    rows = _by_size(plot)
    sizes = sorted(set(plot.swept.values()))
    apart = _BESIDE * (sizes[-1] - sizes[0] or 1)
    for index, series in enumerate(plot.series):
        own = rows[rows["series"] == series]
        timed = own.dropna(subset=[plot.metric.name])
        places = timed["size"] + apart * (index - (len(plot.series) - 1) / 2)
        look = _look(plot, series).line | {"linestyle": "", "markersize": 5}
        axes.plot(places, timed[plot.metric.name] / unit, label=series + _reach(own, timed), **look)
    _ceiling_line(axes, plot)
    reach = apart * len(plot.series) / 2
    for name, ceiling in _ceilings(plot).items():
        middle = plot.swept[str(name)]
        axes.hlines(ceiling / unit, middle - reach, middle + reach, **_CEILING)
    _axes_of_sizes(axes, plot)
    _from_zero(axes)


def _ends(tried: pd.DataFrame, timed: pd.DataFrame) -> set[int]:
    """The first and the last size with a result, each only if sizes beyond it were tried."""
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


def _ceiling_line(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    ceilings = _ceilings(plot)
    if len(ceilings):
        by_size = ceilings.groupby(ceilings.index.map(dict(plot.swept))).max()
        axes.plot(by_size.index, by_size / _axis(plot)[1], zorder=1.8, **_ceiling_look(plot))


def _axes_of_sizes(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    sizes = sorted(set(plot.swept.values()))
    if plot.curve and over_world(plot.curve):
        axes.set_xticks(sizes)  # linear, so that the ideal is a straight line
    else:
        _size_axis(axes, sizes, _MOST_TICKS * (2 if plot.layout == "variants" else 1))
    axes.set_xlabel(plot.axis)
    axes.set_ylabel(_axis(plot)[0])
    axes.grid()


def _by_size(plot: Plot) -> pd.DataFrame:
    return plot.rows.assign(size=plot.rows["setting"].map(dict(plot.swept))).sort_values("size", kind="stable")


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
    """Draw bandwidth = bytes in flight / latency. The latency is measured at the fewest bytes in flight.

    The line ends at the bandwidth of the fastest result.
    """
    fewest = timed[timed["size"] == timed["size"].min()]
    first = fewest.loc[fewest["time"].idxmin()]
    latency = first["size"] * multiprocessors * first["time"] / first["read_bytes"]
    slope, most = first["bandwidth"] / first["size"], timed["bandwidth"].max()
    sizes = [first["size"], most / slope]
    text = f"Little's law, {latency * 1e9:.0f} ns"
    axes.plot(sizes, [slope * size / 1e9 for size in sizes], "k:", linewidth=1.2, label=text)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")


def _ranking(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """A row for each bar, with its name beside it and its value at the end: for more variants than looks."""
    text, unit = _axis(plot)
    values = plot.rows[plot.metric.name] / unit
    axes.barh(range(len(values)), values, 0.75, **LOOKS[1].bar | {"hatch": ""})
    for place, (value, status) in enumerate(zip(values, plot.rows["status"], strict=True)):
        end, said = (0, _words(status)) if math.isnan(value) else (value, units.significant(value))
        look = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # a line behind the figure would cross it
        axes.annotate(said, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=6, bbox=look)
    for ceiling in _ceilings(plot):
        axes.axvline(ceiling / unit, **_ceiling_look(plot))
    axes.set_yticks(range(len(values)), plot.rows["series"])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(text)
    axes.grid(axis="x")


def _calls(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """A row for each case, the rows of a setting below its name: the device time above the time of a call.

    The axis is logarithmic: it has no zero, so a bar's length would mean nothing.
    """
    known = [float(value) for metric in _TIMES for value in plot.rows[metric].dropna()]
    scale, unit = units.time_scale(known)
    least, most = min(known) / scale / 2, max(known) / scale
    names: list[str] = []
    for setting, rows in plot.rows.groupby("setting", sort=False):
        if text := plot.labels[str(setting)].replace("\n", ", "):
            text = re.sub(
                r"\$(2\^\{\d+\})\$", r"$\\mathbf{\1}$", text
            )  # the weight of a text isn't its formulas' weight
            axes.text(0.01, len(names), text, va="center", weight="bold", transform=axes.get_yaxis_transform())
            names.append("")
        for metric, (label, shift, look) in _TIMES.items():
            places = [len(names) + shift + place for place in range(len(rows))]
            axes.plot(rows[metric] / scale, places, label=label, **look, **_DOT)
            for place, value in zip(places, rows[metric] / scale, strict=True):
                if not math.isnan(value):
                    said = units.significant(value, 3)
                    axes.annotate(said, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=5.5)
        for place, status in enumerate(rows["status"], len(names)):
            if status != "ok":
                axes.text(least, place, f" {_words(status)}", va="center", fontsize=5.5)
        names += list(rows["variant"])
    axes.set_xscale("log")
    axes.set_xlim(least, most * (most / least) ** _ROOM)
    roofline_plot.plain_ticks(axes.xaxis)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time of a call ({unit}), logarithmic")
    axes.grid(axis="x")


def _roofs(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    if plot.roofs is not None:
        roofline_plot.draw(axes, plot.rows, plot.roofs, plot.roles, plot.labels)


def _look(plot: Plot, series: str) -> Look:
    """The same series looks the same in all figures of a scenario."""
    return LOOKS[plot.series.index(series) % len(LOOKS)]


def _ceilings(plot: Plot) -> pd.Series[float]:
    """The limit of the metric for each setting, without settings that have none; empty if the metric has no limit.

    Variants may have different limits, since some do another step on one device: then the highest limit counts.
    """
    if plot.metric.limit not in plot.rows:
        return plot.rows[plot.metric.name].iloc[:0]
    return plot.rows.groupby("setting", sort=False)[plot.metric.limit].max().dropna()


def _ceiling_look(plot: Plot) -> dict[str, Any]:
    return _CEILING | {"label": METRICS[plot.metric.limit].title}


def _statuses(axes: matplotlib.axes.Axes, bars: Iterable[tuple[float, str]]) -> None:
    """Write the status of each case without a time in the place of its bar."""
    for middle, status in bars:
        if status != "ok":
            axes.text(middle, 0, f" {_words(status)}", rotation=90, ha="center", va="bottom", fontsize=5.5)


def _words(status: str) -> str:
    return status.replace("_", " ")


_LAYOUTS: dict[Layout, Callable[[matplotlib.axes.Axes, Plot], None]] = {
    "bars": _bars,
    "lines": _lines,
    "curve": _curve,
    "variants": _variants,
    "world": _world,
    "ranking": _ranking,
    "calls": _calls,
    "roofline": _roofs,
}
