"""Drawing of plots over a size: a line or points for each series, and the ceiling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from harness.report import roofline_plot
from harness.report.plot_parts import CEILING, Marks, ceiling_look, ceilings, interval, looks_of, metric_axis
from harness.report.plotting import Plot, size_label
from harness.report.spreading import apart
from harness.report.sweeps import over_world

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

_MOST_TICKS = 8
_CHARACTER = 1 / 8
"""What a character of a label takes, as a share of the room that each of so many ticks has."""
_FEWEST_POWERS = 4
_WIDE_RANGE = 1024
"""Largest over smallest size from which on a line goes through powers of two only."""
_NEAREST = 1 / 66
"""The least distance of two sizes, as a part of the axis: marks that are nearer would lie on each other."""
_DECADES = 1e4
"""Largest over smallest value of lines above which their axis is logarithmic. Below it, what matters is how near lines
come to the ceiling, which a linear axis shows best."""
_BESIDE = 0.03
"""Distance of points that stand side by side, as a part of the axis."""
_WALL: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 15, "markeredgewidth": 1.8, "zorder": 3.5}
_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markeredgewidth": 0.9}


def lines(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """A line for each variant, and one for the ceiling, over the symbol that varies."""
    drawn = _over_sizes(axes, plot)
    _metric_axis(axes, plot)
    return drawn


def curve(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """Lines over an expression. With Little's law both axes are logarithmic, so that the law is a straight line."""
    drawn = _over_sizes(axes, plot)
    timed = _by_size(plot).dropna(subset=["bandwidth"])
    if plot.curve and plot.curve.littles_law and plot.metric.name == "bandwidth" and plot.multiprocessors:
        _littles_law(axes, timed, plot.multiprocessors)
    else:
        _metric_axis(axes, plot)
    return drawn


def variants(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """A line for each variant over the curve's expression; a bar marks where it ends."""
    _, unit = metric_axis(plot)
    rows, over = _by_size(plot), Sizes.of(plot)
    look = looks_of(plot)
    drawn: list[Marks] = []
    for series in plot.series:
        own = rows[rows["series"] == series]
        timed = own.dropna(subset=[plot.metric.name])
        drawn += _line(axes, plot, own, over, look[series].line | {"label": series + _reach(own, timed)})
        ends = timed[timed["size"].isin(_ends(own, timed))]
        axes.plot(over.places(ends["size"]), ends[plot.metric.name] / unit, color=look[series].color, **_WALL)
    _ceiling_line(axes, plot, over)
    _axes_of_sizes(axes, plot, over)
    _metric_axis(axes, plot)
    return drawn


def world(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """Points over the number of devices, side by side since they differ little, each beside the ideal of its number."""
    _, unit = metric_axis(plot)
    rows, look = _by_size(plot), looks_of(plot)
    over = Sizes.of(plot)
    beside = _BESIDE * (over.sizes[-1] - over.sizes[0] or 1)
    drawn: list[Marks] = []
    for index, series in enumerate(plot.series):
        own = rows[rows["series"] == series]
        timed = own.dropna(subset=[plot.metric.name])
        places = [float(size) for size in timed["size"] + beside * (index - (len(plot.series) - 1) / 2)]
        style = look[series].line | {"linestyle": "", "markersize": 5}
        axes.plot(places, timed[plot.metric.name] / unit, label=series + _reach(own, timed), **style)
        drawn.append(Marks(places, timed))
    _ceiling_line(axes, plot, over)
    reach = beside * len(plot.series) / 2
    for name, ceiling in ceilings(plot).items():
        middle = plot.swept[str(name)]
        axes.hlines(ceiling / unit, middle - reach, middle + reach, **CEILING)
    _axes_of_sizes(axes, plot, over)
    _from_zero(axes, plot)
    return drawn


# ---- Sizes, and their places on the axis.


@dataclass(frozen=True)
class Sizes:
    """The sizes of a plot in order. is_log: whether their axis is logarithmic. are_lines: whether lines are drawn."""

    sizes: tuple[int, ...]
    is_log: bool
    are_lines: bool

    @classmethod
    def of(cls, plot: Plot) -> Sizes:
        sizes = tuple(sorted(set(plot.swept.values())))
        # Over devices the axis is linear, so that the ideal is a straight line.
        is_log = sizes[0] > 0 and not (plot.curve and over_world(plot.curve))
        return cls(sizes, is_log, is_log and plot.layout in ("lines", "variants"))

    @cached_property
    def powers(self) -> tuple[int, ...]:
        return tuple(size for size in self.sizes if size.bit_count() == 1)

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Sizes that no line goes through: between powers of two over a wide range, times jump up and down.

        A line through all of them would say something of sizes that nobody measured.
        """
        is_wide = self.sizes[-1] >= _WIDE_RANGE * self.sizes[0] and len(self.powers) >= _FEWEST_POWERS
        return tuple(size for size in self.sizes if self.are_lines and is_wide and size not in self.powers)

    @cached_property
    def through(self) -> tuple[int, ...]:
        """Sizes that a line goes through."""
        return tuple(size for size in self.sizes if size not in self.others)

    @cached_property
    def _places(self) -> Mapping[int, float]:
        places = {size: float(size) for size in self.sizes}
        if not self.others:
            return places
        least = _NEAREST * math.log2(self.sizes[-1] / self.sizes[0])
        ends = [-math.inf, *map(math.log2, self.through), math.inf]
        for low, high in pairwise(ends):
            between = [size for size in self.others if low < math.log2(size) < high]
            moved = apart([math.log2(size) for size in between], low, high, least)
            places |= {size: 2**place for size, place in zip(between, moved, strict=True)}
        return places

    def places(self, sizes: Iterable[int]) -> list[float]:
        """Where sizes stand: at their values, but as far from each other as marks need."""
        return [self._places[size] for size in sizes]


def _by_size(plot: Plot) -> pd.DataFrame:
    return plot.rows.assign(size=plot.rows["setting"].map(dict(plot.swept))).sort_values("size", kind="stable")


# ---- Lines.


def _over_sizes(axes: matplotlib.axes.Axes, plot: Plot) -> list[Marks]:
    """Every series and the ceiling, as lines; as points where several settings stand at one place."""
    _, unit = metric_axis(plot)
    rows, look, over = _by_size(plot), looks_of(plot), Sizes.of(plot)
    drawn: list[Marks] = []
    for index, series in enumerate(plot.series):
        own = rows[rows["series"] == series]
        style = look[series].line | {"label": series}
        if own["size"].duplicated().any():
            # Points have different sizes, so that points that coincide stay visible.
            size = 7.5 - 5 * index / len(plot.series)
            places = over.places(own["size"])
            axes.plot(places, own[plot.metric.name] / unit, **style | {"linestyle": "none", "markersize": size})
            drawn.append(Marks(places, own))
        else:
            drawn += _line(axes, plot, own, over, style)
    _ceiling_line(axes, plot, over)
    failed = sorted(set(rows["size"][rows["status"] != "ok"]))
    if failed:
        bottom, places = axes.get_xaxis_transform(), over.places(failed)
        axes.plot(places, [0] * len(failed), "kx", markersize=4, clip_on=False, transform=bottom, label="no result")
    _axes_of_sizes(axes, plot, over)
    return drawn


def _line(
    axes: matplotlib.axes.Axes, plot: Plot, own: pd.DataFrame, over: Sizes, style: dict[str, Any]
) -> Iterator[Marks]:
    """A series: a line that breaks where a size has no result, and hollow marks at sizes that no line goes through."""
    _, unit = metric_axis(plot)
    values = own.set_index("size")[plot.metric.name] / unit
    # A series for each value of a symbol has sizes of its own.
    through = [size for size in over.through if not (plot.curve and plot.curve.by) or size in values.index]
    axes.plot(over.places(through), values.reindex(through), **style)
    others = [size for size in over.others if size in values.index]
    hollow = style | _HOLLOW | {"markeredgecolor": style["color"], "label": "_nolegend_", "zorder": 2.5}
    axes.plot(over.places(others), values.reindex(others), **hollow)
    yield Marks(over.places(own["size"]), own)


def _ends(tried: pd.DataFrame, timed: pd.DataFrame) -> set[int]:
    """The first and the last size with a result, each only if sizes beyond it were tried."""
    reached = {timed["size"].min(), timed["size"].max()}
    return reached - {tried["size"].min(), tried["size"].max()}


def _reach(tried: pd.DataFrame, timed: pd.DataFrame) -> str:
    """What the legend says of a variant that doesn't reach both ends."""
    if timed.empty:
        return ": no result"
    first, last = timed["size"].min(), timed["size"].max()
    told = [f"from {first}"] if first > tried["size"].min() else []
    told += [f"up to {last}"] if last < tried["size"].max() else []
    return f", {' '.join(told)}" if told else ""


def _ceiling_line(axes: matplotlib.axes.Axes, plot: Plot, over: Sizes) -> None:
    found = {plot.swept[str(setting)]: ceiling for setting, ceiling in ceilings(plot).sort_values().items()}
    if not found:
        return
    if plot.metric.limit == "ideal_items":
        # Where no case ran on one device and on several, the ideal is known of several alone.
        found.setdefault(over.sizes[0], found[min(found)] / min(found) * over.sizes[0])
    sizes = sorted(found)
    unit = metric_axis(plot)[1]
    heights = [found[size] / unit for size in sizes]
    axes.plot(over.places(sizes), heights, zorder=1.8, **ceiling_look(plot))


# ---- Axes.


def _metric_axis(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Logarithmic where the values span many decades: on a linear axis the smaller ones would all lie on its foot."""
    values = plot.rows[plot.metric.name].dropna()
    if values.min() > 0 and values.max() > _DECADES * values.min():
        axes.set_yscale("log")
        roofline_plot.plain_ticks(axes.yaxis)
        axes.set_ylabel(f"{axes.get_ylabel()}, logarithmic")
    else:
        _from_zero(axes, plot)


def _from_zero(axes: matplotlib.axes.Axes, plot: Plot) -> None:
    """Start the axis at zero, and leave space at the top for the markers and all intervals."""
    unit = metric_axis(plot)[1]
    ends = [found[1] / unit for _, row in plot.rows.iterrows() if (found := interval(plot, row))]
    axes.set_ylim(0, 1.04 * max([axes.get_ylim()[1], *ends]))


def _axes_of_sizes(axes: matplotlib.axes.Axes, plot: Plot, over: Sizes) -> None:
    if plot.curve and over_world(plot.curve):
        axes.set_xticks(over.sizes)
    else:
        _size_axis(axes, over, _MOST_TICKS * (2 if plot.layout == "variants" else 1))
    axes.set_xlabel(plot.axis)
    axes.set_ylabel(metric_axis(plot)[0])
    axes.grid()


def _size_axis(axes: matplotlib.axes.Axes, over: Sizes, most: int) -> None:
    """Logarithmic, with powers of two where they suffice, and other sizes above; linear if there is a zero."""
    from matplotlib.ticker import MaxNLocator

    if not over.is_log:
        axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 4, 8, 10], integer=True))
        return
    are_powers = over.others or (len(over.sizes) > most and len(over.powers) >= _FEWEST_POWERS)
    shown = over.powers if are_powers else over.sizes
    shown = shown[:: math.ceil(len(shown) / most)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(shown, _labels(shown, _CHARACTER / most))
    axes.minorticks_off()
    if over.others:
        axes.plot([], [], label="hollow: size above the plot", **_HOLLOW, marker="o", color="black", markersize=4.5)
        axes.set_xticks(over.places(over.others), list(map(str, over.others)), minor=True)
        above: dict[str, Any] = {"top": True, "labeltop": True, "bottom": False, "labelbottom": False}
        axes.tick_params(axis="x", which="minor", labelsize=5.5, labelrotation=90, width=0.4, length=2, **above)


def _labels(sizes: Sequence[int], character: float) -> list[str]:
    """Labels of sizes on a logarithmic axis; '' for a label that would touch the one before.

    character: what a character takes, as a share of the axis.
    """
    found: list[str] = []
    width, taken = math.log2(sizes[-1] / sizes[0]) or 1.0, -math.inf
    for size in sizes:
        label = size_label(size)
        middle, half = (
            math.log2(size) / width,
            character * (len(label.strip("$").replace("^{", "").rstrip("}")) + 1) / 2,
        )
        is_free = middle - half >= taken
        found.append(label if is_free else "")
        taken = middle + half if is_free else taken
    return found


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
    roofline_plot.plain_ticks(axes.yaxis)
