"""The stages of pipelines as dots: what each can do alone, which one limits, and what the whole does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from harness import units
from harness.collection.steps.pipeline._facts import EXPECTED, LIMITING, STAGES, rate_of

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas as pd

TITLE = "stages alone, and the whole"
_ALONE: dict[str, Any] = {"color": "#9CC3E0", "marker": "o", "label": "a stage alone"}
_SLOWEST: dict[str, Any] = {"color": "#D55E00", "marker": "D", "label": "the slowest stage, which limits"}
_WHOLE: dict[str, Any] = {"color": "#444444", "marker": "s", "label": "the whole"}
_DOT: dict[str, Any] = {"linestyle": "none", "markersize": 4.5, "markeredgecolor": "black", "markeredgewidth": 0.5}
_EXPECTED: dict[str, Any] = {
    "color": "black",
    "linestyle": "none",
    "marker": "|",
    "markersize": 9,
    "markeredgewidth": 1.6,
    "label": "expected of the whole",
}
_ROW, _FRAME = 0.15, 1.15
"""Inches of a row, and of what stands around all rows."""
_ROOM = 0.22
"""Room for the numbers beside dots, as a part of the axis."""


def of(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of cases that are pipelines: those that say what is expected of the whole."""
    return rows.dropna(subset=[EXPECTED, "items"]) if EXPECTED in rows else rows.iloc[:0]


def height(rows: pd.DataFrame) -> float:
    """Inches that a figure of these cases takes."""
    return _FRAME + _ROW * sum(len(_rates(case)) + 1 for _, case in rows.iterrows())


def draw(axes: matplotlib.axes.Axes, rows: pd.DataFrame) -> None:
    """A group of dots for each case, below its variant's name.

    The axis is logarithmic, since stages differ much; it has no zero, so a bar's length would mean nothing.
    """
    names: list[str] = []
    every: list[float] = []
    for _, case in rows.iterrows():
        axes.text(0.01, len(names), case["variant"], va="center", weight="bold", transform=axes.get_yaxis_transform())
        names.append("")
        limiting = STAGES[int(case[LIMITING])]
        for name, rate in _rates(case).items():
            look = _WHOLE if name == "whole" else _SLOWEST if name == limiting else _ALONE
            axes.plot(rate, len(names), **look, **_DOT)
            end = max(rate, case[EXPECTED]) if name == "whole" else rate
            axes.annotate(_written(rate), (end, len(names)), (5, 0), textcoords="offset points", va="center", size=6)
            names.append(name)
            every.append(rate)
        axes.plot(case[EXPECTED], len(names) - 1, **_EXPECTED)
    least, most = min(every) / 2, max(every)
    axes.set_xscale("log")
    axes.set_xlim(least, most * (most / least) ** _ROOM)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{rows['item'].iloc[0] or 'items'} a second, logarithmic")
    axes.grid(axis="x")


def _rates(case: pd.Series[Any]) -> dict[str, float]:
    """The rate of each stage that the case has, and that of the whole."""
    rates = {name: float(case.get(rate_of(name), math.nan)) for name in STAGES}
    return {name: rate for name, rate in rates.items() if not math.isnan(rate)} | {"whole": float(case["items"])}


def _written(rate: float) -> str:
    scale, prefix = units.prefixed(rate)
    return f"{units.significant(rate / scale, 3)}{prefix}"
