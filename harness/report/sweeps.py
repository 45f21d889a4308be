"""Scenarios whose curve has a line for each variant, as tables: sizes against variants, and where variants stop."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.expressions import evaluate, symbols_in
from harness.metrics import ALWAYS, METRICS, Metric
from harness.model import FAILED, Curve, Scenario
from harness.report.frame import Line, Settings, setting, settings_of
from harness.report.text import first_line
from harness.report.tree import Cell, Column, Note, Table, text_column

_KEEP = {"baseline": ALWAYS, "ours": ALWAYS - 1}
"""The rank of a variant's column by its role: a narrow console leaves out columns with a low rank."""
_MOST_SPANS = 3
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


@dataclass(slots=True)
class Stop:
    """The sizes at which a variant has results, the sizes at which it has none, and the kinds of cases."""

    variant: str
    ran: str
    without: str
    reason: str
    kinds: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a scenario with a curve of variants shows in the place of a row a case."""

    over: str
    tables: list[Table]
    stops: list[Stop]


def of(curve: Curve | None, lines: list[Line], asked: str = "") -> Sweep | None:
    """The sweep of a scenario's lines, with a table a kind of cases; None without a curve of variants.

    asked: the metric that the scenario's plots show, if it says so.
    Several devices are judged by more than one figure, so a curve over the world has no such table either.
    """
    if curve is None or not curve.of_variants or over_world(curve):
        return None
    place = places(curve, settings_of(lines))
    kinds = _by_kind(lines)
    tables = [_table(curve, kind, own, place, asked) for kind, own in kinds.items()]
    return Sweep(curve.over, tables, stops(kinds, place))


def places(curve: Curve, settings: Settings) -> dict[str, int]:
    """The place of each setting on the curve's axis: the value of the curve's expression."""
    # Settings name the world only where it isn't 1 throughout.
    every = {name: {"world": 1} | values for name, values in settings.items()}
    sizes = {name: {key: n for key, n in values.items() if isinstance(n, int)} for name, values in every.items()}
    return {name: evaluate(curve.over, own) for name, own in sizes.items()}


def asked(scenario: Scenario) -> str:
    """The metric that the scenario's plots show: the one that it names, or items over devices; '' for the usual one."""
    return scenario.plot or ("items" if scenario.curve and over_world(scenario.curve) else "")


def over_world(curve: Curve) -> bool:
    """Whether a curve shows what more devices do."""
    return "world" in symbols_in(curve.over)


def _by_kind(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of one kind together: of one dtype, with its choices and its world where they vary."""
    several = len({(line.case.choices, line.case.world) for line in lines}) > 1
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        case = line.case
        world = f"world={case.world}" if case.world > 1 else ""
        chosen = [case.choices_text.replace(",", " "), world] if several else []
        found[" ".join(filter(None, [case.dtype, *chosen]))].append(line)
    return dict(found)


def _table(curve: Curve, kind: str, lines: Sequence[Line], place: Mapping[str, int], asked: str) -> Table:
    """A row for each setting, a column for each variant, of the metric asked for, else of that by `foremost`."""
    is_known = asked and any(line.values.get(asked) is not None for line in lines)
    metric = METRICS[asked] if is_known else foremost(lines)
    at = {(setting(line.case), line.case.variant): line for line in lines}
    rows = sorted(dict.fromkeys(name for name, _ in at), key=lambda name: place[name])
    best = _best(metric, lines)
    made = [_names(curve, rows, place)]
    for variant, role in dict.fromkeys((line.case.variant, line.role) for line in lines):
        own = [at.get((row, variant)) for row in rows]
        cells = tuple(_cell(metric, line) for line in own)
        tops = frozenset(i for i, row in enumerate(rows) if cells[i] == best.get(row))
        keep = _KEEP.get(role, ALWAYS - 2)
        made.append(Column(variant, cells, metric.unit, keep=keep, best=tops))
    absent = "; - where a variant has none" if any("-" in column.cells for column in made) else ""
    return Table(tuple(made), f"{kind}: {metric.title} in {{unit}}{absent}")


def foremost(lines: Sequence[Line]) -> Metric:
    """The metric with the highest rank for sweeps that some line has; the time if none has."""
    ranked = sorted((m for m in METRICS.values() if m.sweep), key=lambda metric: -metric.sweep)
    known = (m for m in ranked if any(line.values.get(m.name) is not None for line in lines))
    return next(known, METRICS["time"])


def _best(metric: Metric, lines: Sequence[Line]) -> dict[str, float]:
    """The best value of each row."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        value = line.values.get(metric.name)
        if value is not None:
            found[setting(line.case)].append(value)
    choose = min if metric.better == "lower" else max
    return {row: choose(values) for row, values in found.items()}


def _cell(metric: Metric, line: Line | None) -> Cell:
    """The value of the case; if there is none, nothing (not measured), a word (failed), or '-' (can't run)."""
    if line is None:
        return ""
    value, status = line.values.get(metric.name), line.result.status
    if value is not None:
        return value
    return status if status in FAILED else "" if status == "ok" else "-"


def _names(curve: Curve, rows: Sequence[str], place: Mapping[str, int]) -> Column:
    """The column that names the rows: places on the curve's axis, or shapes and choices if some share a place."""
    if len({place[row] for row in rows}) == len(rows):
        return Column(curve.over, tuple(str(place[row]) for row in rows))
    return text_column("shape", rows)


def stops(kinds: Mapping[str, Sequence[Line]], place: Mapping[str, int]) -> list[Stop]:
    """A stop for each variant and reason. Reasons that differ only in their numbers count as one."""
    found: dict[tuple[str, ...], Stop] = {}
    for kind, lines in kinds.items():
        for variant in dict.fromkeys(line.case.variant for line in lines):
            own = [line for line in lines if line.case.variant == variant]
            ordered = sorted(own, key=lambda line: place[setting(line.case)])
            sizes = list(dict.fromkeys(place[setting(line.case)] for line in ordered))
            ran = spans((place[setting(line.case)] for line in ordered if line.result.status == "ok"), sizes)
            for why, failed in _by_reason(ordered, place).items():
                without = spans((at for at, _ in failed), sizes)
                stop = Stop(variant, ran, without, failed[0][1])
                found.setdefault((variant, ran, without, why), stop).kinds.append(kind)
    return list(found.values())


def _by_reason(lines: Iterable[Line], place: Mapping[str, int]) -> dict[str, list[tuple[int, str]]]:
    """Each place without a result and its reason, by the reason without its numbers."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for line in lines:
        if line.result.status != "ok":
            said = [line.result.status.replace("_", " "), first_line(line.result.error or "")]
            reason = ": ".join(filter(None, said))
            found[_NUMBER.sub("0", reason)].append((place[setting(line.case)], reason))
    return found


def spans(chosen: Iterable[int], sizes: Sequence[int]) -> str:
    """The chosen ones of all `sizes` in a few words: '1, 4 to 1024'; if they are scattered, how many they are."""
    taken = set(chosen)
    found: list[list[int]] = []
    for before, size in zip([None, *sizes], sizes, strict=False):
        if size in taken:
            if before not in taken:
                found.append([])
            found[-1].append(size)
    if len(found) > _MOST_SPANS:
        return f"{len(taken)} of {len(sizes)}, from {found[0][0]} to {found[-1][-1]}"
    return ", ".join(f"{span[0]}" if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in found) or "nowhere"


def stop_table(over: str, found: Sequence[Stop]) -> Table:
    """The stops as a table. over: what the curve is over."""
    return Table(
        (
            text_column("variant", (stop.variant for stop in found)),
            text_column("dtypes", (", ".join(stop.kinds) for stop in found)),
            text_column(f"{over} with a result", (stop.ran for stop in found)),
            text_column("without", (stop.without for stop in found)),
            text_column("why, at the first of these", (stop.reason for stop in found), code=True),
        )
    )


def stop_notes(over: str, found: Sequence[Stop]) -> list[Note]:
    """The stops as sentences."""
    return [
        Note(
            f"{stop.variant} ({', '.join(stop.kinds)}): no result at {over} = {stop.without}: {stop.reason}", "warning"
        )
        for stop in found
    ]
