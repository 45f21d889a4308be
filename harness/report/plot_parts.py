"""What drawings of plots have in common: the axis of the metric, the ceiling, how a series looks, and error bars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import units
from harness.metrics import METRICS
from harness.report.looks import SERIES, Look, looks
from harness.report.plotting import Plot

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

CEILING: dict[str, Any] = {"color": "black", "linewidth": 1.4}
_ALIKE = 0.02
"""Limits that are no further apart, as a share of the highest, are one line: a picture doesn't tell them apart."""
_FAR = 50
"""A limit that is more times the longest bar than this would leave no bar that could be told from the axis."""
INTERVAL = "95% interval"
"""What the legend calls an error bar."""
_RATES = (units.BANDWIDTH, units.OPERATIONS, units.ITEMS, units.TOKENS)
MARK = 4.5
"""Points: the size of a mark. A narrower interval would be hidden by its mark."""
ERROR_BAR: dict[str, Any] = {
    "fmt": "none",
    "ecolor": "black",
    "elinewidth": 0.7,
    "capsize": 1.6,
    "capthick": 0.7,
    "zorder": 3.2,
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Where the rows of a plot were drawn. places: along the axis that isn't the metric's."""

    places: Sequence[float]
    rows: pd.DataFrame


def metric_axis(plot: Plot) -> tuple[str, float]:
    """What is written on the axis of the metric, and how much one of its unit is in SI units."""
    noun = next(filter(None, plot.rows["item"]), "")
    unit, scale = plot.metric.unit.axis([*plot.rows[plot.metric.name].dropna()], noun)
    shorter = ", lower is better" if plot.metric.better == "lower" else ""
    return f"{plot.metric.title}{f' ({unit})' if unit else ''}{shorter}", scale


def looks_of(plot: Plot) -> dict[str, Look]:
    """The look of each series: a variant's look, or the next one where a series is no variant."""
    if plot.curve is None or not plot.curve.by:
        return looks(plot.roles)
    return {series: SERIES[index % len(SERIES)] for index, series in enumerate(plot.series)}


def ceilings(plot: Plot) -> pd.Series[float]:
    """The limit of the metric for each setting, without settings that have none; empty if the metric has no limit.

    Variants may have different limits, since some do another step on one device: then the highest limit counts.
    """
    if plot.metric.limit not in plot.rows:
        return plot.rows[plot.metric.name].iloc[:0]
    return plot.rows.groupby("setting", sort=False)[plot.metric.limit].max().dropna()


def ceilings_of_bars(plot: Plot) -> Iterator[tuple[str, str | None, float]]:
    """Each setting, a series and a limit: of all bars of the setting, with None for the series, or of each bar.

    Bars have different limits where their products are of different types. Limits far above all bars aren't shown.
    """
    if plot.metric.limit not in plot.rows:
        return
    for name, rows in plot.rows.dropna(subset=[plot.metric.limit]).groupby("setting", sort=False):
        limits = rows[plot.metric.limit]
        if limits.max() - limits.min() <= _ALIKE * limits.max():
            found: list[tuple[str | None, float]] = [(None, float(limits.max()))]
        else:
            found = [*zip(rows["series"], map(float, limits), strict=True)]
        yield from ((str(name), series, limit) for series, limit in found if not far_above(plot, limit))


def far_above(plot: Plot, limit: float) -> bool:
    """Whether a limit beside the plot's bars would leave them too short to be seen."""
    return bool(limit > _FAR * plot.rows[plot.metric.name].max())


def bar_axis(plot: Plot) -> tuple[str, float]:
    """The same as `metric_axis` gives, with a word on limits that aren't shown."""
    text, scale = metric_axis(plot)
    limits = plot.rows[plot.metric.limit].dropna() if plot.metric.limit in plot.rows else ()
    hidden = any(far_above(plot, limit) for limit in limits)
    return (f"{text}\n{METRICS[plot.metric.limit].title}: far above" if hidden else text), scale


def ceiling_look(plot: Plot) -> dict[str, Any]:
    """Keywords of the line of the ceiling, with its label."""
    return CEILING | {"label": METRICS[plot.metric.limit].title}


def error_bars(axes: matplotlib.axes.Axes, plot: Plot, drawn: Iterable[Marks], *, across: bool = False) -> None:
    """Draw the 95% interval of each row, where it is wider than a mark. The axes must have their limits.

    across: the metric's axis lies across.
    """
    scale, label = metric_axis(plot)[1], INTERVAL
    for marks in drawn:
        for place, (_, row) in zip(marks.places, marks.rows.iterrows(), strict=True):
            ends = shown_interval(axes, plot, row, scale, across=across)
            if ends is None:
                continue
            value = row[plot.metric.name]
            error: Any = [[(value - ends[0]) / scale], [(ends[1] - value) / scale]]
            if across:
                axes.errorbar(value / scale, place, xerr=error, label=label, **ERROR_BAR)
            else:
                axes.errorbar(place, value / scale, yerr=error, label=label, **ERROR_BAR)
            label = "_nolegend_"


def shown_interval(
    axes: matplotlib.axes.Axes, plot: Plot, row: pd.Series[Any], scale: float, *, across: bool = False
) -> tuple[float, float] | None:
    """The 95% interval of a row, in SI units, where it is wider than a mark. The axes must have limits.

    scale: as metric_axis has it. across: the metric's axis lies across.
    """
    ends = interval(plot, row)
    return ends if ends and length(axes, [end / scale for end in ends], across=across) > MARK else None


def interval(plot: Plot, row: pd.Series[Any]) -> tuple[float, float] | None:
    """The 95% interval of the plot's metric, from that of the time; None where it isn't known."""
    value, time, low, high = (row[name] for name in (plot.metric.name, "time", "low", "high"))
    if not all(known == known for known in (value, time, low, high)):  # noqa: PLR0124 - NaN differs from itself
        return None
    if plot.metric is METRICS["time"]:
        return low, high
    return (value * time / high, value * time / low) if plot.metric.unit in _RATES else None


def length(axes: matplotlib.axes.Axes, ends: Sequence[float], *, across: bool) -> float:
    """The distance of two values in points."""
    corner = (axes.get_xlim()[0], axes.get_ylim()[0])
    places = [(end, corner[1]) if across else (corner[0], end) for end in ends]
    (x0, y0), (x1, y1) = axes.transData.transform(places)
    figure = axes.get_figure()
    return float(max(abs(x1 - x0), abs(y1 - y0))) * 72 / (figure.dpi if figure else 72)
