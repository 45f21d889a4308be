"""The stages of pipelines as dots: what each can do alone, which one limits, and what the whole does.

The instrument finds it by `Op.pages`, and reads it as `harness.report.sections` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.collection.steps.pipeline._facts import EXPECTED, LIMITING, STAGES, rate_of
from harness.report.canvas import canvas, legend, save
from harness.report.frame import Line, setting
from harness.report.sections import figure
from harness.report.tree import Figure

if TYPE_CHECKING:
    import matplotlib.axes

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


def figures(lines: Sequence[Line]) -> Iterator[Figure]:
    """The stages of pipelines, a figure for each setting. A curve shows only the whole, over what varies."""
    if lines[0].scenario.curve is not None:
        return
    kinds: dict[tuple[str, ...], dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.values.get(EXPECTED) and line.values["items"]:
            cache = () if line.case.cache == "cold" else (line.case.cache,)
            kinds[line.case.dtype, *cache][setting(line.case)].append(line)
    for words, settings in kinds.items():
        for number, (name, own) in enumerate(settings.items(), 1):
            title = f"{' '.join([own[0].case.op, *words])}: {TITLE}, {name}"
            several = (str(number),) if len(settings) > 1 else ()
            if several:
                title += f" ({number} of {len(settings)})"
            alt = f"{title}, by variant and shape"
            yield figure(alt, partial(draw, own, title), own[0].scenario.name, *words, "stages", *several)


def draw(lines: Sequence[Line], title: str, path: Path) -> list[Path]:
    """Draw the stages of these pipelines."""
    height = _FRAME + _ROW * sum(len(rates(line)) + 1 for line in lines)
    with canvas(height, title) as (drawing, axes):
        _dots(axes, lines)
        legend(drawing, axes)
        return save(drawing, path)


def _dots(axes: matplotlib.axes.Axes, lines: Sequence[Line]) -> None:
    """A group of dots for each case, below its variant's name.

    The axis is logarithmic, since stages differ much; it has no zero, so a bar's length would mean nothing.
    """
    names: list[str] = []
    every: list[float] = []
    for line in lines:
        variant, facts = line.case.variant, line.subject.facts
        axes.text(0.01, len(names), variant, va="center", weight="bold", transform=axes.get_yaxis_transform())
        names.append("")
        limiting = STAGES[int(facts[LIMITING])]
        for name, rate in rates(line).items():
            look = _WHOLE if name == "whole" else _SLOWEST if name == limiting else _ALONE
            axes.plot(rate, len(names), **look, **_DOT)
            end = max(rate, facts[EXPECTED]) if name == "whole" else rate
            axes.annotate(_written(rate), (end, len(names)), (5, 0), textcoords="offset points", va="center", size=6)
            names.append(name)
            every.append(rate)
        axes.plot(facts[EXPECTED], len(names) - 1, **_EXPECTED)
    least, most = min(every) / 2, max(every)
    axes.set_xscale("log")
    axes.set_xlim(least, most * (most / least) ** _ROOM)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    work = lines[0].result.work
    axes.set_xlabel(f"{(work and work.item) or 'items'} a second, logarithmic")
    axes.grid(axis="x")


def rates(line: Line) -> dict[str, float]:
    """The rate of each stage that the case has, and the whole's."""
    facts = line.subject.facts
    stages = {name: facts[rate_of(name)] for name in STAGES if rate_of(name) in facts}
    return stages | {"whole": line.values["items"] or 0.0}


def _written(rate: float) -> str:
    scale, prefix = units.prefixed(rate)
    return f"{units.significant(rate / scale, 3)}{prefix}"
