"""The main table of a scenario: a row a case, a column for each metric that some case has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.metrics import ALWAYS, METRICS, Metric, named
from harness.model import COUNTERS, FAILED, Case, Scenario
from harness.model.case import written
from harness.report import call_times, sections
from harness.report.frame import Line
from harness.report.sweeps import asked
from harness.report.text import first_line
from harness.report.tree import Cell, Column, Kind, Table, text_column
from harness.units import BYTES, MICROSECONDS, PLAIN, SECONDS, SHARE

_BOUND = (
    "the limit of the machine that the ceiling comes from: memory, the types in which the variant does its operations, "
    "or the link. Operations are compared with the burst peak, or with the settled one if the case keeps the machine "
    "under load"
)

_UNITS = {"s": SECONDS, "B": BYTES, "share": SHARE}
"""How counters of these units are written."""
_OF_TRACES = {
    "torch.idle": SHARE,
    "torch.host": SHARE,
    "torch.batched": SHARE,
    "torch.gap": MICROSECONDS,
    **dict.fromkeys(("nsys.gap", "nsys.host", "nsys.span"), SECONDS),
}
"""How figures of timelines are written that aren't called as metrics are."""


def table(lines: Sequence[Line], *, errors: bool = True) -> Table:
    """The cases of one scenario, without columns that would be empty. errors: with what each error says first.

    A case without a time shows its status in the place of the time.
    """
    return _made([*_names(lines), *_metrics(lines), *_attached(lines), *_findings(lines, errors)], lines)


def brief(lines: Sequence[Line]) -> tuple[list[str], Table]:
    """What all rows have in common besides the variant, and the table without it and without errors."""
    chosen = [dict(line.case.choices) for line in lines]
    same = {key: value for key, value in chosen[0].items() if all(own.get(key) == value for own in chosen)}
    common: list[str] = []
    kept: list[Column] = []
    for column in _names(lines, frozenset(same)):
        if column.head == "variant" or column.is_empty or len(set(column.cells)) > 1:
            kept.append(column)
        else:
            common.append(f"world={column.cells[0]}" if column.head == "world" else str(column.cells[0]))
        if column.head == "choices":
            common += [f"{key}={written(value)}" for key, value in same.items()]
    return common, _made([*kept, *_metrics(lines), *_attached(lines), *_findings(lines, errors=False)], lines)


def _made(columns: Sequence[Column], lines: Sequence[Line]) -> Table:
    return Table(tuple(column for column in columns if not column.is_empty), kinds=tuple(map(_kind, lines)))


def _kind(line: Line) -> Kind:
    status = line.result.status
    return "" if status == "ok" else "failure" if status in FAILED else "warning"


def _names(lines: Sequence[Line], told: frozenset[str] = frozenset()) -> Iterator[Column]:
    """The columns that name a case. told: choices that are told elsewhere."""
    cases = [line.case for line in lines]
    yield text_column("shape", (case.shape_text for case in cases))
    yield text_column("choices", (_choices(case, told) for case in cases))
    several = any(case.world > 1 for case in cases)
    hint = "number of devices that work on the case together"
    yield Column("world", tuple(str(case.world) if several else "" for case in cases), hint=hint)
    yield text_column("cache", ("" if case.cache == "cold" else case.cache for case in cases), keep=8)
    yield text_column("dtype", (case.dtype for case in cases))
    yield text_column("variant", (case.variant for case in cases))


def _choices(case: Case, told: frozenset[str]) -> str:
    return ", ".join(f"{key}={written(value)}" for key, value in case.choices if key not in told)


def _metrics(lines: Sequence[Line]) -> Iterator[Column]:
    noun = next((line.result.work.item for line in lines if line.result.work and line.result.work.item), "")
    over = lines[0].scenario.baseline
    reported = {name: named(name) for line in lines for name in line.subject.facts}
    calls = call_times.matter(lines[0].scenario, lines)
    ranks = _ranks(lines[0].scenario)
    for metric in (METRICS | reported).values():
        if metric.head and (calls or metric is not METRICS["call_time"]):
            cells = tuple(_cell(metric, line) for line in lines)
            head = metric.head.replace("{over}", over)
            keep = max(metric.keep, ranks.get(metric.name, 0))
            yield Column(head, cells, metric.unit, noun, keep=keep, hint=metric.hint)


def _ranks(scenario: Scenario) -> dict[str, int]:
    """The least ranks of metrics that the scenario is about: what it plots, and what it claims or expects."""
    own = [claim.metric for claim in scenario.claims] + [floor.metric for floor in scenario.expect]
    return dict.fromkeys(own, ALWAYS - 1) | {asked(scenario): ALWAYS}


def _cell(metric: Metric, line: Line) -> Cell:
    value = line.values.get(metric.name)
    if value is not None:
        return value if metric.shown(line.subject) else ""
    return line.result.status if metric is METRICS["time"] else ""


def _attached(lines: Sequence[Line]) -> Iterator[Column]:
    """A column for each figure that tools found. One that has the name of a counter or a metric is written as it is."""
    shown = (key for line in lines for key in line.attached if not sections.is_elsewhere(line.case.op, key))
    for key in dict.fromkeys(shown):
        tool, _, name = key.partition(".")
        counter, metric = COUNTERS.get(name), METRICS.get(name)
        title = counter.title if counter else metric.title if metric else name
        unit = _UNITS.get(counter.unit, PLAIN) if counter else metric.unit if metric else _OF_TRACES.get(key, PLAIN)
        cells = tuple(line.attached.get(key, "") for line in lines)
        yield Column(f"{key} ({{unit}})", cells, unit, keep=3, hint=f"{title}, as {tool} found it")


def _findings(lines: Sequence[Line], errors: bool) -> Iterator[Column]:
    if any(line.subject.beyond_memory for line in lines):
        yield text_column("bound by", map(_bound, lines), keep=4, hint=_BOUND)
    warnings = (", ".join(warning.code for warning in line.result.warnings) for line in lines)
    yield text_column("warnings", warnings, keep=6)
    if errors:
        yield text_column("error", (first_line(line.result.error or "") for line in lines), keep=1, code=True)


def _bound(line: Line) -> str:
    """The limit that the ceiling comes from; for operations also whether the burst or the settled peak was taken."""
    bound = line.subject.bound
    if bound is None:
        return ""
    return f"{bound.limit}, {line.subject.state}" if line.subject.bound_by_compute else bound.limit
