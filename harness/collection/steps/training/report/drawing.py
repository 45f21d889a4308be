"""Plots of steps of training: losses by step, items a second by rung, and the time of a step by family of kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.collection.steps.training.report.losses import LossGroup
from harness.collection.steps.training.report.rungs import IDLE, OTHER, ClaimedRung, RungGroup, title
from harness.families import FAMILIES
from harness.report.canvas import WIDE, canvas, legend, save
from harness.report.frame import Line
from harness.report.looks import BASELINES, FOREMOST, Look, looks
from harness.report.plot_parts import ERROR_BAR, INTERVAL, MARK, length
from harness.report.roles import today

if TYPE_CHECKING:
    import matplotlib.axes

_BAND: dict[str, Any] = {"color": "#DDDDDD", "linewidth": 0}
_COLORS = ("#0072B2", "#009E73", "#D55E00", "#56B4E9", "#E69F00", "#CC79A7", "#F0E442")
_COLUMNS = 4
"""Small plots of losses side by side, at most."""
_ROW = 0.2
"""Inches from one bar to the next."""
_MARGINS = 1.0
_ROOM = 1.42
"""The end of the axis over the longest bar, so that texts beside bars have room."""
_BAR: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}
_FAMILIES = {False: ("greys: torch", BASELINES[4].color), True: ("warm colours: with kernels of ours", FOREMOST.color)}
"""What the legend says of the colours of variants without and with kernels of ours."""
_CLAIM: dict[str, Any] = {"marker": "D", "color": "#0072B2", "markersize": 4.5, "linestyle": "", "zorder": 3}
_HATCHES = ("", "////")
"""Families are told apart by colour first, then by a hatch."""
_BOX: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
_BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
_UPPER, _SMALL = 1.5, 0.95
"""Inches of the height of the plot of the baseline's losses, and of a row of small plots."""
_LINEAR = 1e-3
"""Differences of losses up to this one are on a linear scale, larger differences on a logarithmic scale."""


def losses(group: LossGroup, path: Path) -> list[Path]:
    """Draw the losses of the baseline over the steps, and below, a small plot a rung, how far the rung's are from them.

    Lines are means of seeds. The range of the baseline's seeds is a band in all plots. The small plots have one scale,
    so that rungs compare; in one plot twenty of them would hide each other.
    """
    base = group.baseline
    name = f"Losses of training, {group.setting}: means of {base.plan[2]} seeds"
    columns = max(1, min(_COLUMNS, len(group.others)))
    rows = math.ceil(len(group.others) / columns)
    with canvas(_MARGINS + _UPPER + _SMALL * rows, name, WIDE) as (drawing, only):
        only.remove()
        grid = drawing.add_gridspec(rows + 1, columns, height_ratios=(_UPPER, *[_SMALL] * rows))
        upper = drawing.add_subplot(grid[0, :])
        _band(upper, base, (0.0,) * len(base.curve))
        upper.plot(base.steps, base.curve, "k", linewidth=1.6, label=base.name)
        upper.set_ylabel(f"loss of {base.name}")
        first = None
        for place, rung in enumerate(group.others):
            axes = drawing.add_subplot(grid[1 + place // columns, place % columns], sharex=first, sharey=first)
            first = first or axes
            _band(axes, base, base.curve)
            axes.plot(rung.steps, _less(rung.curve, base.curve), "k", linewidth=0.9)
            axes.set_title(rung.name, fontsize=6.5, pad=2)
            # Some rungs are a hundred times as near to the baseline as other rungs, and both have to be seen.
            axes.set_yscale("symlog", linthresh=_LINEAR)
            axes.set_yticks((-0.1, -_LINEAR, 0, _LINEAR, 0.1))
            axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
            is_lowest = place + columns >= len(group.others)
            axes.tick_params(labelsize=5.5, labelleft=not place % columns, labelbottom=is_lowest)
            axes.set_xlabel("step" if is_lowest else "")
        drawing.supylabel(f"below: loss minus the loss of {base.name}, logarithmic beyond ±{_LINEAR:g}", fontsize=6.5)
        legend(drawing, upper)
        return save(drawing, path)


def _band(axes: matplotlib.axes.Axes, base: Any, less: Sequence[float]) -> None:
    low, high = (_less(map(end, zip(*base.curves, strict=True)), less) for end in (min, max))
    axes.fill_between(base.steps, low, high, label=f"seeds of {base.name}", **_BAND)
    axes.margins(x=0)
    axes.grid()


def _less(values: Iterable[float], others: Iterable[float]) -> list[float]:
    return [value - other for value, other in zip(values, others, strict=True)]


def ladder(group: RungGroup, path: Path) -> list[Path]:
    """Draw a bar for each rung, its items a second, and a mark where a text's speed-up would be.

    An error bar is the 95% interval, where it is wider than a mark.
    """
    rates, ends = [group.rate(name) for name in group.names], [group.rates(name) for name in group.names]
    claimed = group.claimed
    unit, scale = units.ITEMS.axis(rates, group.item)
    most = max(*rates, *(high for _, high in ends), *(found.rate for found in claimed.values()))
    with canvas(_MARGINS + _ROW * len(rates), f"{group.op} rung by rung, {group.setting}", WIDE) as (drawing, axes):
        look = _looks(group.lines)
        colors = [look[name].color for name in group.names]
        axes.barh(range(len(rates)), [rate / scale for rate in rates], 0.72, color=colors, **_BAR)
        for is_ours, (label, color) in _FAMILIES.items():
            if any((line.role == "ours") is is_ours for line in group.lines):
                axes.scatter([], [], marker="s", s=30, color=color, label=label, **_BAR)
        for place, name in enumerate(group.names):
            axes.annotate(units.significant(rates[place] / scale), (0, place), (4, 0), bbox=_BOX, **_BESIDE)
            if found := claimed.get(name):
                axes.plot(found.rate / scale, place, label="where the text's factor would be", **_CLAIM)
                factors = f"{units.ratio(found.measured)} of {found.over}; the text {_written(found)}"
                axes.annotate(factors, (max(ends[place][1], found.rate) / scale, place), (6, 0), **_BESIDE)
        _rows(axes, group.names)
        axes.set_xlim(0, (_ROOM if claimed else 1.02) * most / scale)
        _intervals(axes, [rate / scale for rate in rates], [(low / scale, high / scale) for low, high in ends])
        axes.set_xlabel(unit)
        legend(drawing, axes)
        return save(drawing, path)


def _intervals(axes: matplotlib.axes.Axes, values: Sequence[float], ends: Sequence[tuple[float, float]]) -> None:
    """An error bar at each value whose interval is wider than a mark. The axes must have their limits."""
    label = INTERVAL
    for place, (value, (low, high)) in enumerate(zip(values, ends, strict=True)):
        if length(axes, (low, high), across=True) > MARK:
            axes.errorbar(value, place, xerr=[[value - low], [high - value]], label=label, **ERROR_BAR)
            label = "_nolegend_"


def _looks(lines: Sequence[Line]) -> dict[str, Look]:
    return looks(today(lines[0].scenario, [line.case.variant for line in lines]))


def _written(found: ClaimedRung) -> str:
    return units.ratio(found.claim.value or 0.0)


def families(group: RungGroup, path: Path) -> list[Path]:
    """Draw a bar for each traced rung, the time of its step, in parts by family of kernels."""
    names = [name for name in group.names if name in group.parts]
    seconds = [group.seconds(name) for name in names]
    scale, unit = units.time_scale([max(sum(own.values()) for own in seconds)])
    name = f"{group.op}: the time of a step by family of kernels, {group.setting}"
    with canvas(_MARGINS + 0.25 + _ROW * len(names), name, WIDE) as (drawing, axes):
        starts = [0.0] * len(names)
        for key in (*group.families, IDLE):
            lengths = [own[key] / scale for own in seconds]
            axes.barh(range(len(names)), lengths, 0.72, left=starts, label=title(key), **_look(key))
            starts = [start + length for start, length in zip(starts, lengths, strict=True)]
        for place, end in enumerate(starts):
            axes.annotate(units.significant(end, 3), (end, place), (3, 0), **_BESIDE)
        _rows(axes, names)
        axes.set_xlim(0, 1.08 * max(starts))
        axes.set_xlabel(f"time of a step ({unit}), lower is better")
        legend(drawing, axes)
        return save(drawing, path)


def _look(family: str) -> dict[str, Any]:
    """How the parts of a family look in every figure. Where no kernel runs is white."""
    if family == IDLE:
        return {"color": "white", **_BAR}
    if family == OTHER:
        return {"color": "#EEEEEE", "hatch": "----", **_BAR}
    row, place = divmod(list(FAMILIES).index(family), len(_COLORS))
    return {"color": _COLORS[place], "hatch": _HATCHES[row % len(_HATCHES)], **_BAR}


def _rows(axes: Any, names: list[str]) -> None:
    """An axis of names, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
