"""Every pair of every case as a dot, with the margin as a line: what the verdicts rest on, at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.gate.records import GateRun, Stage, share
from harness.report import _canvas
from harness.report.gate._content import CaseRow, rows

if TYPE_CHECKING:
    import matplotlib.axes

_ROW = 0.2  # inches a case
_AROUND = 1.0  # inches for title, axis and legend
_LINEAR = 2.0  # margins around zero that the axis shows linearly; what lies further out is drawn nearer
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # percent
_TICKS_A_SIDE = 4
_LOOKS: dict[Stage, dict[str, Any]] = {
    "screen": {"facecolors": "none", "edgecolors": "#777777", "marker": "o", "linewidths": 0.7, "s": 13},
    "confirm": {"facecolors": "#0072B2", "edgecolors": "black", "marker": "D", "linewidths": 0.3, "s": 11},
}
_OFFSET: dict[Stage, float] = {"screen": -0.18, "confirm": 0.18}
_COLORS = {"failure": "#D55E00", "environment": "#CC79A7", "undecided": "#E69F00"}


def write(run: GateRun, folder: Path) -> list[Path]:
    """Draw pairs.svg and pairs.png: cases worst first. Nothing where there is no pair."""
    table = [row for row in rows(run) if row.evidence.pairs]
    if not table:
        return []
    title = f"Speed of {_short(run.now.label)} over {_short(run.base.label)}, pair by pair"
    with _canvas.canvas(_AROUND + _ROW * len(table), title, _canvas.WIDE) as (figure, axes):
        _rows(axes, table)
        _scale(axes, table)
        _canvas.legend(figure, axes)
        return _canvas.save(figure, folder / "pairs.png")


def _rows(axes: matplotlib.axes.Axes, table: Sequence[CaseRow]) -> None:
    """A row a case: band, margin, interval, then the pairs."""
    axes.axvline(0, color="#999999", linewidth=0.6, zorder=1)
    for place, row in enumerate(table):
        if place % 2:
            axes.axhspan(place - 0.5, place + 0.5, color="#F5F5F5", zorder=0)
        _interval(axes, place, row)
        for stage in row.counts:
            changes = [_percent(pair.change) for pair in row.evidence.pairs if pair.stage == stage]
            # Moved apart within the row, so that equal changes are seen to be several.
            heights = [place + _OFFSET[stage] + 0.03 * (i % 3 - 1) for i in range(len(changes))]
            axes.scatter(changes, heights, label=f"pairs to {stage}", zorder=3, **_LOOKS[stage])
    limits = [_percent(row.evidence.margin.limit) for row in table]
    edges = [edge for place in range(len(table)) for edge in (place - 0.5, place + 0.5)]
    doubled = [limit for limit in limits for _ in range(2)]
    axes.plot(doubled, edges, color="#D55E00", linewidth=1.0, linestyle="--", label="margin", zorder=2)
    axes.set_yticks(range(len(table)), [f"{row.case}  {row.verdict}" for row in table], fontsize=6)
    for label, row in zip(axes.get_yticklabels(), table, strict=True):
        label.set_color(_COLORS.get(row.severity, "black"))
        label.set_fontweight("bold" if row.severity in _COLORS else "normal")
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def _interval(axes: matplotlib.axes.Axes, place: int, row: CaseRow) -> None:
    """The interval that decided, as a bar behind the pairs of its stage."""
    if decision := row.evidence.decision:
        low, high = _percent(decision.low), _percent(decision.high)
        height = place + _OFFSET[decision.stage]
        color = _COLORS.get(row.severity, "#56B4E9")
        axes.barh(height, high - low, 0.3, low, color=color, alpha=0.35, label="interval that decided", zorder=1.5)


def _scale(axes: matplotlib.axes.Axes, table: Sequence[CaseRow]) -> None:
    """Linear around zero, where the decisions fall; logarithmic beyond, so that one huge loss hides no small one."""
    changes = [_percent(pair.change) for row in table for pair in row.evidence.pairs]
    ends = [_percent(end) for row in table if (d := row.evidence.decision) for end in (d.low, d.high)]
    margin = max(100 * row.evidence.margin.value for row in table)
    low, high = min(*changes, *ends, -margin), max(*changes, *ends, margin)
    linear = _LINEAR * margin
    axes.set_xscale("symlog", linthresh=linear, linscale=2)
    axes.set_xlim(1.2 * low, 1.2 * high)
    ticks = [tick for tick in _TICKS if margin / 2 <= tick <= max(-low, high)]
    ticks = ticks[:: -(-len(ticks) // _TICKS_A_SIDE)] or [margin]
    axes.set_xticks([t for t in (*(-t for t in reversed(ticks)), 0.0, *ticks) if low <= t <= high])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:+g}%" if value else "0")
    axes.grid(axis="x")
    beyond = f", logarithmic beyond {linear:.3g}%" if 1.2 * max(-low, high) > linear else ""
    axes.set_xlabel(f"change in speed{beyond}")


def _percent(change: float) -> float:
    return 100 * share(change)


def _short(label: str) -> str:
    return label if len(label) <= 24 else label[:23] + "…"
