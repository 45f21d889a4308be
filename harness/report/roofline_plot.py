"""The roofline: operations a second over operations a byte, below what memory and compute allow at most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from harness import units
from harness.metrics import METRICS
from harness.model import Limits, Work
from harness.model.limits import State
from harness.report.looks import looks
from harness.report.spreading import apart

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.axis
    import pandas as pd

TITLE = "roofline"
HINT = (
    "a point is a case: the operations that the op has to do for each byte that it has to move, and how many of them "
    "it does in a second. The sloped line is the most that the memory allows (a plain stream of the same mix and size, "
    "the fastest of all cases), a level line the peak of a type. The dash above a point is the ceiling of that case: "
    "on the slope memory binds, on a level line compute"
)
_DASHES = ("-", (0, (6, 2)), (0, (6, 2, 1, 2)), (0, (1, 1.2)))
_STATES = {"burst": "black", "settled": "#888888"}
_POINT: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0.6}
_DASH: dict[str, Any] = {
    "color": "black",
    "linestyle": "none",
    "marker": "_",
    "markersize": 10,
    "markeredgewidth": 1.6,
    "zorder": 2.1,
}
_ROOF: dict[str, Any] = {"linewidth": 1.1, "zorder": 1.8}
_NEAREST = 1 / 66
"""The least distance of two texts above the axes, as a part of the axis."""
_ABOVE = 1.05
_HEIGHT = 3.2
_CHARACTER = 0.047
"""Inches of a character of a text above the axes."""
_NAME: dict[str, Any] = {"rotation": 90, "fontsize": 5.5, "ha": "center", "va": "bottom"}
_LEADER: dict[str, Any] = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.4, "shrinkA": 0, "shrinkB": 0}
_MARGIN = 2.0
"""Factor between the outermost point or roof and the edge of the figure."""
_MANY_DECADES = 100.0
_INTEGERS = ("int8",)


@dataclass(frozen=True, slots=True)
class Roof:
    """Operations a second of a type, in a short burst or settled."""

    kind: str
    state: State
    rate: float


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the machine can do at most for some cases. memory: bytes a second; None where no stream was measured."""

    memory: float | None
    compute: tuple[Roof, ...]


@dataclass(frozen=True, slots=True)
class Name:
    """A text above the axes. place: the operations a byte that it names. part: where it stands on the axis, 0 to 1."""

    place: float
    part: float
    text: str


def roofs(works: Iterable[Work | None], limits: Limits | None) -> Roofs | None:
    """The roofs over cases with these works; None if no peak of their operations was measured.

    The memory's roof is the plain stream of the bytes of a work that is the fastest of all works.
    """
    known = [work for work in dict.fromkeys(works) if work]
    if limits is None:
        return None
    kinds = dict.fromkeys(kind for work in known for kind, count in work.flops if count)
    compute = [
        Roof(kind, state, rate) for kind in kinds for state in get_args(State) if (rate := limits.rate(kind, state))
    ]
    streams = (_stream(work, limits) for work in known)
    return Roofs(max(filter(None, streams), default=None), tuple(compute)) if compute else None


def _stream(work: Work, limits: Limits) -> float | None:
    """Bytes a second of a plain stream of what the work takes from memory."""
    read = work.read - min(work.again, limits.cache_bytes)
    seconds = limits.stream_seconds(read, work.written)
    return (read + work.written) / seconds if seconds else None


def draw(
    axes: matplotlib.axes.Axes, rows: pd.DataFrame, over: Roofs, roles: Mapping[str, str], labels: Mapping[str, str]
) -> None:
    """Draw a point for each row of `frame`, a dash for its ceiling, and the roofs.

    rows: with a column `setting`. roles: the variants'. labels: the text for each setting.
    """
    unit, scale = METRICS["flops"].unit.axis([], "")
    if all(roof.kind in _INTEGERS for roof in over.compute):
        unit = _of_integers(unit)
    found = looks(roles)
    for variant in dict.fromkeys(rows["variant"]):
        own = rows[rows["variant"] == variant]
        line = found[variant].line
        point = line | _POINT | {"markersize": line["markersize"] + 1}
        axes.plot(own["intensity"], own["flops"] / scale, label=variant, **point)
    ceilings = rows.drop_duplicates(["intensity", "ceiling_flops"])
    axes.plot(ceilings["intensity"], ceilings["ceiling_flops"] / scale, label="ceiling of a case", **_DASH)
    peaks = [roof.rate for roof in over.compute]
    ridges = [max(peaks) / over.memory] if over.memory else []
    low, high = _range([*rows["intensity"], *ridges])
    for label, along, roof, look in _lines(over, low, high):
        axes.plot(along, [each / scale for each in roof], label=label, **_ROOF, **look)
    bottom, top = _range([*rows["flops"] / scale, *(each / scale for each in peaks)])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, top)
    for name in names(rows, labels, low, high):
        axes.annotate(
            name.text,
            (name.place, 1),
            (name.part, _ABOVE),
            xycoords=axes.get_xaxis_transform(),
            textcoords="axes fraction",
            arrowprops=_LEADER,
            **_NAME,
        )
    _logarithmic(axes)
    axes.set_xlabel(METRICS["intensity"].title)
    axes.set_ylabel(f"{METRICS['flops'].title} ({unit})")
    axes.grid()


def names(rows: pd.DataFrame, labels: Mapping[str, str], low: float, high: float) -> list[Name]:
    """What is written above the axes for each place of cases, as far from the next text as it needs.

    Settings at one place share a text. `low` and `high` are the ends of the axis.
    """
    span = math.log(high / low)
    texts = {float(str(place)): _joined(own["setting"], labels) for place, own in rows.groupby("intensity")}
    known = {place: text for place, text in texts.items() if text}
    every = math.ceil(len(known) * _NEAREST)
    shown = list(known)[:: max(1, every)]
    parts = apart([math.log(place / low) / span for place in shown], 0, 1, _NEAREST)
    return [Name(place, part, known[place]) for place, part in zip(shown, parts, strict=True)]


def _joined(settings: Iterable[str], labels: Mapping[str, str]) -> str:
    """What settings at one place are called: the first one's label, and how many more there are."""
    first, *more = dict.fromkeys(labels[name].replace("\n", ", ") for name in settings)
    return f"{first}, and {len(more)} more" if more else first


def height(rows: pd.DataFrame, labels: Mapping[str, str]) -> float:
    """Inches of a figure of these rows, with its texts above."""
    longest = max(len(name.text) for name in names(rows, labels, 1, 2)) if any(labels.values()) else 0
    return _HEIGHT + _CHARACTER * longest


def _lines(over: Roofs, low: float, high: float) -> Iterator[tuple[str, list[float], list[float], dict[str, Any]]]:
    """The text of each roof, the line between two places on the axis (its x and its y, in SI units), and its look."""
    most = max(roof.rate for roof in over.compute)
    if over.memory:
        x = [low, most / over.memory]
        yield f"memory (sloped): {units.rate(over.memory)}", x, [over.memory * each for each in x], {"color": "black"}
    kinds = list(dict.fromkeys(roof.kind for roof in over.compute))
    for roof in over.compute:
        start = roof.rate / over.memory if over.memory else low
        look = {"color": _STATES[roof.state], "linestyle": _DASHES[kinds.index(roof.kind) % len(_DASHES)]}
        rate = units.operations(roof.rate)
        text = f"{roof.kind}, {roof.state}: {_of_integers(rate) if roof.kind in _INTEGERS else rate}"
        yield text, [start, high], [roof.rate] * 2, look


def _of_integers(text: str) -> str:
    """A text with the unit of operations on integers, which aren't floating-point operations."""
    return text.replace("FLOP", "OP")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that has room for all of the values."""
    return min(values) / _MARGIN, max(values) * _MARGIN


def _logarithmic(axes: matplotlib.axes.Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)


def plain_ticks(axis: matplotlib.axis.Axis) -> None:
    """Plain numbers on a logarithmic axis: at powers of ten and, where these are few, between them too."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _MANY_DECADES * low else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _place: f"{value:g}")
