"""Drawing of the plots that `plotting` plans, one function a layout; `size_charts` has the layouts over a size."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.metrics import METRICS
from harness.report import roofline_plot, size_charts
from harness.report.canvas import WIDE, WIDTH, canvas, legend, legend_rows, peak_line, save
from harness.report.plot_parts import (
    Marks,
    bar_axis,
    ceiling_look,
    ceilings_of_bars,
    error_bars,
    far_above,
    looks_of,
    shown_interval,
)
from harness.report.plotting import Layout, Plot

if TYPE_CHECKING:
    import matplotlib.axes

_AXIS_CHARACTERS = 48
"""Characters of a line of the label below bars; the axes are narrower than the figure."""
_BAND = 0.82
"""Width of a group of bars, where groups are 1 apart: the rest is the gap to the next group."""
_WIDE = ("variants", "roofline")
"""Layouts that are as wide as the page."""
_LINES, _LINE = 5, 0.14
"""Lines of the legend and of the axis that a picture of bars has room for, and inches of each further one."""
_ROW = 0.19
"""Height in inches of a row with two dots."""
_TIMES: dict[str, tuple[str, float, dict[str, Any]]] = {
    "time": ("device time (graph)", -0.2, {"marker": "o", "color": "#444444"}),
    "call_time": ("call time (no graph)", 0.2, {"marker": "D", "color": "white"}),
}
"""The label of each time, the place of its dot in a row, and its look."""
_OF_BARS = ("bars", "ranking")
_DOT: dict[str, Any] = {"linestyle": "none", "markersize": 4, "markeredgecolor": "black", "markeredgewidth": 0.6}
_NUMBER = 0.1
"""Width of a number behind a bar of a ranking, as a part of the highest ceiling."""
_ROOM = 0.2
"""Room for the numbers beside dots, as a part of the axis."""


def draw(plot: Plot, peak: float | None, path: Path) -> list[Path]:
    """Draw one plot and save it, as SVG or PNG by the suffix. peak: bandwidth of the library copy in B/s."""
    with canvas(_height(plot), plot.title, WIDE if plot.layout in _WIDE else WIDTH) as (drawing, axes):
        drawn = _LAYOUTS[plot.layout](axes, plot)
        error_bars(axes, plot, drawn, across=plot.layout == "ranking")
        # What a bandwidth is compared with may be another limit than the memory's.
        if plot.metric.unit is units.BANDWIDTH and plot.metric.limit in ("", "ceiling_bandwidth"):
            peak = None if peak is None or (plot.layout in _OF_BARS and far_above(plot, peak)) else peak
            peak_line(axes.axvline if plot.layout == "ranking" else axes.axhline, peak)
        legend(drawing, axes)
        return save(drawing, path)


def _height(plot: Plot) -> float:
    """Height of the plot in inches."""
    if plot.layout == "ranking":
        return 0.85 + 0.13 * len(plot.rows)
    if plot.layout == "calls":
        return 0.95 + _ROW * (len(plot.rows) + plot.rows["setting"].nunique())
    if plot.layout == "variants":
        return 3.9
    if plot.layout == "roofline":
        return roofline_plot.height(plot.rows, plot.labels)
    below = legend_rows([*plot.series, METRICS[plot.metric.limit].title] if plot.metric.limit else plot.series)
    below += len(textwrap.wrap(plot.axis, _AXIS_CHARACTERS))
    return 2.6 + 0.1 * max(label.count("\n") for label in plot.labels.values()) + _LINE * max(0, below - _LINES)


def _bars(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """A group of bars for each setting, with one ceiling across the group, or one over each bar if they differ."""
    text, unit = bar_axis(plot)
    places = {name: place for place, name in enumerate(dict.fromkeys(plot.rows["setting"]))}
    present = set(plot.rows["series"])
    shown = [series for series in plot.series if series in present]
    width = _BAND / len(shown)
    look, drawn = looks_of(plot), []
    for index, series in enumerate(shown):
        rows = plot.rows[plot.rows["series"] == series]
        middles = [places[name] - _BAND / 2 + (index + 0.5) * width for name in rows["setting"]]
        axes.bar(middles, rows[plot.metric.name] / unit, min(0.92 * width, 0.3), label=series, **look[series].bar)
        drawn.append(Marks(middles, rows))
        _statuses(axes, zip(middles, rows["status"], strict=True))
    for name, of_bar, ceiling in ceilings_of_bars(plot):
        first, count = (0, len(shown)) if of_bar is None else (shown.index(of_bar), 1)
        start = places[name] - _BAND / 2 + first * width
        axes.hlines(ceiling / unit, start, start + count * width, **ceiling_look(plot))
    axes.set_xticks(range(len(places)), [plot.labels[name] for name in places])
    axes.set_xlim(-0.55, len(places) - 0.45)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("\n".join(textwrap.wrap(plot.axis, _AXIS_CHARACTERS)))
    axes.set_ylabel(text)
    axes.grid(axis="y")
    return drawn


def _ranking(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """A row for each bar, with its name, its value, and ceilings as `_bars` has them: for more variants than looks."""
    text, unit = bar_axis(plot)
    values = plot.rows[plot.metric.name] / unit
    look = looks_of(plot)
    colors = [look[series].color for series in plot.rows["series"]]
    axes.barh(range(len(values)), values, 0.75, color=colors, edgecolor="black", linewidth=0.4)
    own: dict[int, float] = {}
    for _, of_bar, ceiling in ceilings_of_bars(plot):
        if of_bar is None:
            axes.axvline(ceiling / unit, **ceiling_look(plot))
        else:
            place = list(plot.rows["series"]).index(of_bar)
            own[place] = ceiling / unit
            axes.vlines(own[place], place - 0.5, place + 0.5, **ceiling_look(plot))
    axes.set_yticks(range(len(values)), plot.rows["series"])
    axes.set_ylim(len(values) - 0.4, -0.6)
    for place, (value, (_, row)) in enumerate(zip(values, plot.rows.iterrows(), strict=True)):
        bar = shown_interval(axes, plot, row, unit, across=True)
        end = 0 if math.isnan(value) else max(value, bar[1] / unit if bar else value)
        if 0 <= own.get(place, math.inf) - end < _NUMBER * max(own.values(), default=0):
            end = own[place]  # the number would hide the bar's ceiling
        said = row["status"].replace("_", " ") if math.isnan(value) else units.significant(value)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}  # a line behind the figure would cross it
        axes.annotate(said, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=6, bbox=box)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(text)
    axes.grid(axis="x")
    return [Marks(range(len(values)), plot.rows)]


def _calls(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
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
                axes.text(least, place, f" {status.replace('_', ' ')}", va="center", fontsize=5.5)
        names += list(rows["variant"])
    axes.set_xscale("log")
    axes.set_xlim(least, most * (most / least) ** _ROOM)
    roofline_plot.plain_ticks(axes.xaxis)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time of a call ({unit}), logarithmic")
    axes.grid(axis="x")
    return []


def _roofs(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    if plot.roofs is not None:
        roofline_plot.draw(axes, plot.rows, plot.roofs, plot.roles, plot.labels)
    return []


def _statuses(axes: matplotlib.axes.Axes, bars: Iterable[tuple[float, str]]) -> None:
    """Write the status of each case without a time in the place of its bar."""
    for middle, status in bars:
        if status != "ok":
            axes.text(middle, 0, f" {status.replace('_', ' ')}", rotation=90, ha="center", va="bottom", fontsize=5.5)


_LAYOUTS: dict[Layout, Callable[[matplotlib.axes.Axes, Plot], list[Marks]]] = {
    "bars": _bars,
    "lines": size_charts.lines,
    "curve": size_charts.curve,
    "variants": size_charts.variants,
    "world": size_charts.world,
    "ranking": _ranking,
    "calls": _calls,
    "roofline": _roofs,
}
