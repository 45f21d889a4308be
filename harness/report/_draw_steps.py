"""Plots of steps of training: losses by step, items a second by rung, and the time of a step by family of kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import units
from harness.report._canvas import LOOKS, WIDE, canvas, legend, save
from harness.report._losses import LossGroup
from harness.report._rungs import IDLE, OTHER, RungGroup, title

_BAND: dict[str, Any] = {"color": "#BBBBBB", "alpha": 0.6, "linewidth": 0}
_COLORS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#D55E00", "#8C6D00")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1)))
"""Lines are told apart by colour first, then by dashes."""
_ROW = 0.2
"""Inches from one bar to the next."""
_MARGINS = 1.0
_ROOM = 1.42
"""The end of the axis over the longest bar, so that texts beside bars have room."""
_BAR: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}
_ROLES = {"ours": "#E69F00", "baseline": "#CCCCCC"}
_CLAIM: dict[str, Any] = {"marker": "D", "color": "#0072B2", "markersize": 4.5, "linestyle": "", "zorder": 3}
_HATCHES = ("", "////", "", "xxxx", "", "\\\\\\\\", "", "++++")


def losses(group: LossGroup, path: Path) -> list[Path]:
    """Draw the range of the baseline's seeds as a band, and the mean of each rung's seeds as a line over the steps."""
    name = f"Losses of training, {group.setting}: means of {group.baseline.plan[2]} seeds"
    with canvas(3.9, name, WIDE) as (drawing, axes):
        curves = group.baseline.curves
        low, high = map(min, zip(*curves, strict=True)), map(max, zip(*curves, strict=True))
        band = f"seeds of {group.baseline.name}, from the lowest to the highest"
        axes.fill_between(group.baseline.steps, [*low], [*high], label=band, **_BAND)
        axes.plot(group.baseline.steps, group.baseline.curve, "k", linewidth=1.6, label=group.baseline.name)
        for place, rung in enumerate(group.others):
            dashes = _DASHES[place // len(_COLORS) % len(_DASHES)]
            look = {"color": _COLORS[place % len(_COLORS)], "linestyle": dashes, "linewidth": 1.0}
            axes.plot(rung.steps, rung.curve, label=rung.name, **look)
        axes.set_xlabel("step")
        axes.set_ylabel("loss, lower is better")
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.grid()
        legend(drawing, axes)
        return save(drawing, path)


def ladder(group: RungGroup, path: Path) -> list[Path]:
    """Draw a bar for each rung, its items a second, and a mark where a text's speed-up would be."""
    rates = [group.rate(name) for name in group.names]
    claimed = group.claimed
    unit, scale = units.ITEMS.axis(rates, group.item)
    most = max(*rates, *(found.rate for found in claimed.values()))
    with canvas(_MARGINS + _ROW * len(rates), f"{group.op} rung by rung, {group.setting}", WIDE) as (drawing, axes):
        for role, color in _ROLES.items():
            own = [place for place, line in enumerate(group.lines) if (line.role == "ours") == (role == "ours")]
            named = "with kernels of ours" if role == "ours" else "torch"
            axes.barh(own, [rates[place] / scale for place in own], 0.72, color=color, label=named, **_BAR)
        for place, name in enumerate(group.names):
            end, said = rates[place], units.significant(rates[place] / scale)
            if found := claimed.get(name):
                end = max(end, found.rate)
                label = "the text's factor, from what was measured here of the other rung"
                axes.plot(found.rate / scale, place, label=label, **_CLAIM)
                written = units.ratio(found.claim.value or 0.0)
                said += f": {units.ratio(found.measured)} of {found.over}, the text {written}"
            axes.annotate(said, (end / scale, place), (6, 0), textcoords="offset points", va="center")
        _rows(axes, group.names)
        axes.set_xlim(0, _ROOM * most / scale)
        axes.set_xlabel(unit)
        legend(drawing, axes)
        return save(drawing, path)


def families(group: RungGroup, path: Path) -> list[Path]:
    """Draw a bar for each traced rung, the time of its step, in parts by family of kernels."""
    names = [name for name in group.names if name in group.parts]
    seconds = [group.seconds(name) for name in names]
    scale, unit = units.time_scale([max(sum(own.values()) for own in seconds)])
    name = f"{group.op}: the time of a step by family of kernels, {group.setting}"
    with canvas(_MARGINS + 0.25 + _ROW * len(names), name, WIDE) as (drawing, axes):
        starts = [0.0] * len(names)
        for place, key in enumerate((*group.families, IDLE)):
            lengths = [own[key] / scale for own in seconds]
            axes.barh(range(len(names)), lengths, 0.72, left=starts, label=title(key), **_look(key, place))
            starts = [start + length for start, length in zip(starts, lengths, strict=True)]
        for place, end in enumerate(starts):
            axes.annotate(units.significant(end, 3), (end, place), (3, 0), textcoords="offset points", va="center")
        _rows(axes, names)
        axes.set_xlim(0, 1.08 * max(starts))
        axes.set_xlabel(f"time of a step ({unit}), lower is better")
        legend(drawing, axes)
        return save(drawing, path)


def _look(family: str, place: int) -> dict[str, Any]:
    """How the parts of a family look: no kernel is white, and others are told apart without colour too."""
    if family == IDLE:
        return {"color": "white", **_BAR}
    if family == OTHER:
        return {"color": "#EEEEEE", "hatch": "----", **_BAR}
    color = LOOKS[(place + 1) % len(LOOKS)].color
    return {"color": color, "hatch": _HATCHES[place % len(_HATCHES)], **_BAR}


def _rows(axes: Any, names: list[str]) -> None:
    """An axis of names, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
