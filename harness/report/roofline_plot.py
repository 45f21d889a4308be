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
from harness.report.canvas import variant_lines

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
_ROOM = 0.18
"""Room for the names of settings, as a part of the axis above it."""
_FOOT = 0.02
_CHARACTER = 0.008
"""Width of a character of these names, as a part of the axis below it."""
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
    for variant, look in variant_lines(list(dict.fromkeys(rows["variant"])), roles).items():
        own = rows[rows["variant"] == variant]
        axes.plot(
            own["intensity"],
            own["flops"] / scale,
            label=variant,
            **(look | _POINT | {"markersize": look["markersize"] + 1}),
        )
    ceilings = rows.drop_duplicates(["intensity", "ceiling_flops"])
    axes.plot(ceilings["intensity"], ceilings["ceiling_flops"] / scale, label="ceiling of a case", **_DASH)
    peaks = [roof.rate for roof in over.compute]
    ridges = [max(peaks) / over.memory] if over.memory else []
    low, high = _range([*rows["intensity"], *ridges])
    for label, along, roof, look in _lines(over, low, high):
        axes.plot(along, [each / scale for each in roof], label=label, **_ROOF, **look)
    bottom, top = _range([*rows["flops"] / scale, *(each / scale for each in peaks)])
    axes.set_xlim(low, high)
    axes.set_ylim(bottom / (top / bottom) ** _ROOM, top)
    for x, text in names(rows, labels, low, high):
        axes.text(x, _FOOT, text, ha="center", va="bottom", fontsize=6, transform=axes.get_xaxis_transform())
    _logarithmic(axes)
    axes.set_xlabel(METRICS["intensity"].title)
    axes.set_ylabel(f"{METRICS['flops'].title} ({unit})")
    axes.grid()


def names(rows: pd.DataFrame, labels: Mapping[str, str], low: float, high: float) -> list[tuple[float, str]]:
    """Texts that name the settings below their points, each with its place between `low` and `high`.

    Settings whose texts would lie on each other share one, of the lines that all of them have.
    """
    groups: list[tuple[list[float], list[str]]] = []
    for place, own in rows.groupby("intensity"):
        places, lines = [float(str(place))], _common([labels[name] for name in own["setting"]])
        while groups and _overlap(groups[-1], (places, lines), high / low):
            before = groups.pop()
            places, lines = before[0] + places, [line for line in before[1] if line in lines]
        groups.append((places, lines))
    return [(math.sqrt(places[0] * places[-1]), "\n".join(lines)) for places, lines in groups if lines]


def _common(texts: Sequence[str]) -> list[str]:
    """The lines that all of the texts have."""
    return [line for line in texts[0].split("\n") if line and all(line in text.split("\n") for text in texts)]


def _overlap(left: tuple[list[float], list[str]], right: tuple[list[float], list[str]], span: float) -> bool:
    """Whether two texts would lie on each other, on an axis whose end is `span` times its start."""
    half = [max(map(len, lines), default=0) * _CHARACTER / 2 for _, lines in (left, right)]
    middles = [math.log(places[0] * places[-1]) / 2 / math.log(span) for places, _ in (left, right)]
    return middles[1] - middles[0] < sum(half) + _CHARACTER / 2


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
