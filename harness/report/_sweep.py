"""Scenarios with a curve of variants, as tables: sizes against variants, and where variants stop."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness import units
from harness.expressions import evaluate
from harness.model import FAILED, Curve, Scenario
from harness.report._columns import ESSENTIAL, Column, first_line

if TYPE_CHECKING:
    import pandas as pd

_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "of_ceiling": ("share of the ceiling", units.percent),
    "effective_bandwidth": ("effective bandwidth in GB/s", units.gigabytes),
    "items_per_s": ("items a second", units.significant),
    "time_s": ("time", units.seconds),
}
_FIRST = ("eager", "compile", "tuned")
"""What a narrow console shows of the variants before all others."""
_MOST_SPANS = 3
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Table:
    """The results of one dtype: a row a size, a column a variant."""

    caption: str
    columns: list[Column]


@dataclass(slots=True)
class Stop:
    """Where a variant has results and where it has none, for one reason; the dtypes for which that is so."""

    variant: str
    ran: str
    without: str
    reason: str
    dtypes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a scenario with a curve of variants shows in the place of a row a case."""

    over: str
    tables: list[Table]
    stops: list[Stop]


def of(
    scenario: Scenario, rows: pd.DataFrame, shapes: Mapping[str, Mapping[str, int]], best: str = "{}"
) -> Sweep | None:
    """The sweep of a scenario's rows of the frame; None without a curve of variants.

    shapes: the sizes behind the frame's column `shape`. best: what frames the best of each row, e.g. '**{}**'.
    """
    if scenario.curve is None or not scenario.curve.of_variants:
        return None
    place = places(scenario.curve, {shape: shapes[shape] for shape in dict.fromkeys(rows["shape"])})
    return Sweep(scenario.curve.over, tables(scenario.curve, rows, place, best), stops(rows, place))


def places(curve: Curve, shapes: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Where each shape stands on the curve's axis."""
    return {shape: evaluate(curve.over, sizes) for shape, sizes in shapes.items()}


def tables(curve: Curve, rows: pd.DataFrame, place: Mapping[str, int], best: str) -> list[Table]:
    """A table a dtype, of the share of the ceiling, or else of what is known; `best` frames each row's best."""
    return [_table(curve, own, place, f"{dtype}", best) for dtype, own in rows.groupby("dtype", sort=False)]


def _table(curve: Curve, rows: pd.DataFrame, place: Mapping[str, int], dtype: str, best: str) -> Table:
    quantity = next((name for name in _QUANTITIES if rows[name].notna().any()), "time_s")
    what, form = _QUANTITIES[quantity]
    values = rows.pivot(index="shape", columns="variant", values=quantity)
    statuses = rows.pivot(index="shape", columns="variant", values="status")
    shapes = sorted(values.index, key=lambda shape: place[shape])
    tops = values.min(axis=1) if quantity == "time_s" else values.max(axis=1)
    made = [_names(curve, shapes, place)]
    for variant in dict.fromkeys(rows["variant"]):
        cells = [
            (best if value == top else "{}").format(form(value)) if not math.isnan(value) else _word(status)
            for value, top, status in zip(values[variant][shapes], tops[shapes], statuses[variant][shapes], strict=True)
        ]
        made.append(Column(variant, tuple(cells), keep=ESSENTIAL if variant in _FIRST else ESSENTIAL - 1))
    absent = "; - where a variant has none" if any("-" in column.cells for column in made) else ""
    return Table(f"{dtype}: {what}{absent}", made)


def _names(curve: Curve, shapes: Sequence[str], place: Mapping[str, int]) -> Column:
    """What each row is: its place on the curve's axis, or its shape where several share one."""
    if len({place[shape] for shape in shapes}) == len(shapes):
        return Column(curve.over, tuple(str(place[shape]) for shape in shapes))
    return Column("shape", tuple(shapes), right=False)


def _word(status: object) -> str:
    """What stands in the place of a value: nothing if the case wasn't reached, or has no such quantity."""
    if not isinstance(status, str) or status == "ok":
        return ""
    return status if status in FAILED else "-"


def stops(rows: pd.DataFrame, place: Mapping[str, int]) -> list[Stop]:
    """Every variant that has no result somewhere, once for each reason; reasons that differ in numbers are one."""
    found: dict[tuple[str, ...], Stop] = {}
    for (variant, dtype), own in rows.groupby(["variant", "dtype"], sort=False):
        ordered = own.assign(place=own["shape"].map(dict(place))).sort_values("place", kind="stable")
        sizes = list(dict.fromkeys(ordered["place"]))
        ran = spans(ordered["place"][ordered["status"] == "ok"], sizes)
        for kind, failed in _by_reason(ordered).items():
            without = spans((at for at, _ in failed), sizes)
            stop = Stop(str(variant), ran, without, failed[0][1])
            found.setdefault((str(variant), ran, without, kind), stop).dtypes.append(str(dtype))
    return list(found.values())


def _by_reason(rows: pd.DataFrame) -> dict[str, list[tuple[int, str]]]:
    """Where there is no result, and why, by the reason without its numbers."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, status, error in zip(rows["place"], rows["status"], rows["error"], strict=True):
        if status != "ok":
            reason = ": ".join(filter(None, [status.replace("_", " "), first_line(error)]))
            found[_NUMBER.sub("0", reason)].append((place, reason))
    return found


def spans(chosen: Iterable[int], sizes: Sequence[int]) -> str:
    """The chosen of all `sizes` in a few words: '1, 4 to 1024'; or how many, where they are scattered."""
    taken = set(chosen)
    runs: list[list[int]] = []
    for before, size in zip([None, *sizes], sizes, strict=False):
        if size in taken:
            if before not in taken:
                runs.append([])
            runs[-1].append(size)
    if len(runs) > _MOST_SPANS:
        return f"{len(taken)} of {len(sizes)}, from {runs[0][0]} to {runs[-1][-1]}"
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs) or "nowhere"


def stop_columns(over: str, found: Sequence[Stop]) -> list[Column]:
    """The stops as a table; `over` is what the curve is over."""
    return [
        Column("variant", tuple(stop.variant for stop in found), right=False),
        Column("dtypes", tuple(", ".join(stop.dtypes) for stop in found), right=False),
        Column(f"{over} with a result", tuple(stop.ran for stop in found), right=False),
        Column("without", tuple(stop.without for stop in found), right=False),
        Column("why, at the first of these", tuple(stop.reason for stop in found), right=False, code=True),
    ]
