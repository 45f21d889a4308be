"""Every pair of every case as a dot, with the margin as a line: what the verdicts rest on, at a glance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.gate.records import GateRun, Pair, Stage, share
from harness.report import canvas
from harness.report.gate.content import CaseRow, rows
from harness.units import plural

if TYPE_CHECKING:
    import matplotlib.axes

PICTURES = True
_ROW = 0.2  # inches a case
_AROUND = 1.0  # inches for title, axis and legend
_LINEAR = 2.0  # times the smallest margin: so far from zero the axis is linear; what lies further out is drawn nearer
_LEAST_LINEAR = 1e-4  # percent: a logarithmic axis needs a part that is linear, also with a margin of 0
_TICKS_A_SIDE = 4
_FAR = 100  # margins
_MOST_ROWS = 300  # a taller picture would have more pixels than matplotlib draws
_MOST_CHANGE = 100.0  # of a logarithm: more has no meaning, and would not fit a float as a share
_LONGEST = 64  # characters of a case's id; a longer one would leave no width for the dots
_LOOKS: dict[Stage, dict[str, Any]] = {
    "screen": {"facecolors": "none", "edgecolors": "#777777", "marker": "o", "linewidths": 0.7, "s": 13},
    "confirm": {"facecolors": "#0072B2", "edgecolors": "black", "marker": "D", "linewidths": 0.3, "s": 11},
}
_OFFSET: dict[Stage, float] = {"screen": -0.18, "confirm": 0.18}
_COLORS = {"failure": "#D55E00", "environment": "#CC79A7", "undecided": "#E69F00"}


def write(run: GateRun, folder: Path) -> list[Path]:
    """Draw pairs.png: cases worst first. Nothing where there is no pair."""
    every = [row for row in rows(run) if row.evidence.pairs]
    table = every[:_MOST_ROWS]
    if not table:
        return []
    title = f"Speed of {_short(run.now.label, 24)} over {_short(run.base.label, 24)}, pair by pair"
    if len(every) > len(table):
        title += f": the worst {len(table)} of {len(every)} cases"
    origin = canvas.origin(f"{run.machine.name}, {run.started[:10]}")
    with origin, canvas.canvas(_AROUND + _ROW * len(table), title, canvas.WIDE) as (figure, axes):
        _rows(axes, table)
        _scale(axes, table)
        canvas.legend(figure, axes)
        return canvas.save(figure, folder / "pairs.png")


def _rows(axes: matplotlib.axes.Axes, table: Sequence[CaseRow]) -> None:
    """A row a case: band, margin, interval, then the pairs."""
    axes.axvline(0, color="#999999", linewidth=0.6, zorder=1)
    for place, row in enumerate(table):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color="#F5F5F5", zorder=0)
        _interval(axes, place, row)
        for stage in row.counts:
            changes = list(_changes(pair for pair in row.evidence.pairs if pair.stage == stage))
            # Moved apart within the row, so that equal changes are seen to be several.
            heights = [place + _OFFSET[stage] + 0.03 * (i % 3 - 1) for i in range(len(changes))]
            axes.scatter(changes, heights, label=f"pairs to {stage}", zorder=3, **_LOOKS[stage])
    limits = [-100 * row.evidence.margin.value for row in table]
    edges = [edge for place in range(len(table)) for edge in (place - 0.5, place + 0.5)]
    doubled = [limit for limit in limits for _ in range(2)]
    axes.plot(doubled, edges, color="#D55E00", linewidth=1.0, linestyle="--", label="margin", zorder=2)
    axes.set_yticks(range(len(table)), [_label(row) for row in table], fontsize=6)
    for label, row in zip(axes.get_yticklabels(), table, strict=True):
        label.set_color(_COLORS.get(row.severity, "black"))
        label.set_fontweight("bold" if row.severity in _COLORS else "normal")
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _label(row: CaseRow) -> str:
    """The case and its verdict, and how many of its pairs can't be shown."""
    missing = len(row.evidence.pairs) - len(list(_changes(row.evidence.pairs)))
    told = f" ({plural(missing, 'pair')} without a number)" if missing else ""
    return f"{_short(row.case, _LONGEST)}  {row.verdict}{told}"


def _interval(axes: matplotlib.axes.Axes, place: int, row: CaseRow) -> None:
    """The interval that decided, as a bar behind the pairs of its stage."""
    if (decision := row.evidence.decision) and (ends := _ends(row)):
        low, high = ends
        height = place + _OFFSET[decision.stage]
        color = _COLORS.get(row.severity, "#56B4E9")
        axes.barh(height, high - low, 0.3, low, color=color, alpha=0.35, label="interval that decided", zorder=1.5)


def _scale(axes: matplotlib.axes.Axes, table: Sequence[CaseRow]) -> None:
    """Linear around zero, where the decisions fall; logarithmic beyond, so that one huge loss hides no small one."""
    shown = [change for row in table for change in (*_changes(row.evidence.pairs), *_ends(row))]
    margins = [100 * row.evidence.margin.value for row in table]
    # One case that is very noisy mustn't widen the linear part, in which all other cases would be too close to see.
    margin = max(_LEAST_LINEAR, min(margins))
    low, high = min([*shown, -margin, -max(margins)]), max([*shown, margin])
    linear = _LINEAR * margin
    axes.set_xscale("symlog", linthresh=linear, linscale=2)
    axes.set_xlim(1.2 * low, 1.2 * high)
    ticks = _ticks(margin, max(-low, high))
    axes.set_xticks([t for t in (*(-t for t in reversed(ticks)), 0.0, *ticks) if low <= t <= high])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:+g}%" if value else "0")
    axes.grid(axis="x")
    beyond = f", logarithmic beyond {linear:.3g}%" if 1.2 * max(-low, high) > linear else ""
    axes.set_xlabel(f"change in speed{beyond}")


def _ticks(margin: float, end: float) -> list[float]:
    """At most _TICKS_A_SIDE round numbers, up to the end; the margin itself if there is none.

    The first is half the margin or more; the margin or more if the end is far away, where space is short.
    """
    least = margin / 2 if end < _FAR * margin else margin
    every = (digit * 10.0**power for power in count(math.floor(math.log10(least))) for digit in (1, 2, 5))
    ticks = [tick for tick in takewhile(lambda tick: tick <= end, every) if tick >= least]
    return ticks[:: max(1, math.ceil(len(ticks) / _TICKS_A_SIDE))] or [margin]


def _changes(pairs: Iterable[Pair]) -> Iterator[float]:
    """How much faster each pair is now, in percent; nothing for a pair whose times have no ratio."""
    for pair in pairs:
        ratio = pair.base / pair.now if pair.now else math.nan
        if 0 < ratio < math.exp(_MOST_CHANGE):
            yield 100 * (ratio - 1)


def _ends(row: CaseRow) -> tuple[float, ...]:
    """The interval of the decision, in percent; empty if there is none that can be drawn."""
    if not (decision := row.evidence.decision):
        return ()
    ends = (decision.low, decision.high)
    drawable = all(math.isfinite(end) and end < _MOST_CHANGE for end in ends)
    return tuple(100 * share(end) for end in ends) if drawable else ()


def _short(text: str, most: int) -> str:
    """The text; of a longer one than `most` characters its beginning and its end."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[-half:]}"
