"""The cases of a run as data for the page's scripts: what its table and plot show, and apart from it the details."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness import units
from harness.metrics import METRICS, Metric, named
from harness.model import FAILED, Run
from harness.report import call_times
from harness.report.frame import Line, by_scenario
from harness.report.looks import looks
from harness.report.roles import today
from harness.report.summary import Summary
from harness.report.web import details
from harness.report.web.markup import Markup
from harness.report.web.sources import Sources
from harness.units import Unit

_LEAST_RANK = 5
"""The rank from which on a metric has a column; the details of a case have all metrics."""
_KINDS: dict[Unit, str] = {
    units.SECONDS: "time",
    units.MICROSECONDS: "time",
    units.BANDWIDTH: "bandwidth",
    units.ITEMS: "rate",
    units.TOKENS: "rate",
}
"""Units that the page writes itself: times in the unit that the reader chose, rates each with its own prefix, since a
page has cases that are many decades apart. It shows all other values as they are written here."""
_DIGITS = 7
"""Significant digits of a number: more than any table shows."""


def packed(data: object) -> str:
    """Data as text that can stand in a page: JSON, compressed, in base64."""
    content = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def of_run(run: Run) -> list[Line]:
    """A line for each case: the comparisons in the run's order, the fastest variant of each first.

    A case of several scenarios is the first one's.
    """
    found: dict[str, Line] = {}
    for _, own in by_scenario(run):
        for line in own:
            found.setdefault(line.case.id, line)
    groups = {group: place for place, group in enumerate(dict.fromkeys(line.case.group for line in found.values()))}
    return sorted(found.values(), key=lambda line: (groups[line.case.group], line.subject.time or math.inf))


def rows(run: Run, lines: Sequence[Line], summary: Summary) -> dict[str, Any]:
    """What the table and the plot show of each case: lists of one value a case, by name."""
    best = {standing.best.case.id for standing in summary.whole.every}
    ours = {standing.ours.case.id for standing in summary.whole.every if standing.ours}
    behind = {standing.ours.case.id for standing in summary.whole.behind if standing.ours}
    header = run.header
    return {
        "run": {"name": header.name, "machine": header.machine.fingerprint, "started": header.started},
        "columns": [_column(metric, lines) for metric in _metrics(lines)],
        "id": [line.case.id for line in lines],
        "group": [line.case.group for line in lines],
        "op": [line.case.op for line in lines],
        "dtype": [line.case.dtype for line in lines],
        "setting": [_setting(line) for line in lines],
        "whole": [f"{line.case.shape_text} {line.case.choices_text}" for line in lines],
        "variant": [line.case.variant for line in lines],
        "role": [line.role for line in lines],
        "colour": _colours(lines),
        "status": [line.result.status.replace("_", " ") for line in lines],
        "failed": [int(line.result.status in FAILED) for line in lines],
        "time": [_number(line.subject.time) for line in lines],
        "low": [_number(line.values["low"]) for line in lines],
        "high": [_number(line.values["high"]) for line in lines],
        "clocks": [details.conditions(line.result.measurements[0].after) for line in lines],
        "warnings": [", ".join(warning.code for warning in line.result.warnings) for line in lines],
        "best": [int(line.case.id in best) for line in lines],
        "ours": [int(line.case.id in ours) for line in lines],
        "behind": [int(line.case.id in behind) for line in lines],
    }


def more(run: Run, lines: Sequence[Line], markup: Markup) -> dict[str, Any]:
    """The details of each case as HTML, its samples as a histogram, and the sources of all variants."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line.case.group, []).append(line)
    sources, about = Sources(run.header), details.About(run)
    return {
        "html": [markup.blocks(list(details.blocks(line, groups[line.case.group], about)), 3) for line in lines],
        "histogram": [details.histogram(line.result) for line in lines],
        "sources": [sources.of(line.case.op, line.case.variant) for line in lines],
        "files": sources.files,
    }


def _metrics(lines: Sequence[Line]) -> Iterator[Metric]:
    """The metrics of columns, in the order of tables."""
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        by_name.setdefault(line.scenario.name, []).append(line)
    calls = any(call_times.matter(own[0].scenario, own) for own in by_name.values())
    reported = {name: named(name) for line in lines for name in line.subject.facts}
    for metric in (METRICS | reported).values():
        ranked = metric.keep >= _LEAST_RANK or metric is METRICS["noise"]
        hidden = metric is METRICS["call_time"] and not calls
        if metric.head and ranked and not hidden and any(_shown(metric, line) is not None for line in lines):
            yield metric


def _column(metric: Metric, lines: Sequence[Line]) -> dict[str, Any]:
    values = [_number(_shown(metric, line)) for line in lines]
    kind = _KINDS.get(metric.unit, "")
    noun = next((line.result.work.item for line in lines if line.result.work and line.result.work.item), "")
    known = [1.0] if kind == "rate" else [value for value in values if value is not None]
    name, write = metric.unit.column(known, noun)
    head = metric.head.replace("{over}", "baseline")
    for place in (" ({unit})", "{unit}"):
        head = head.replace(place, "" if kind == "time" or not name else place.replace("{unit}", name))
    return {
        "name": metric.name,
        "head": head or metric.title,
        "title": metric.title,
        "hint": metric.hint,
        "better": metric.better,
        "kind": kind,
        "values": values,
        "texts": None if kind else ["" if value is None else write(value) for value in values],
    }


def _shown(metric: Metric, line: Line) -> float | None:
    value = line.values.get(metric.name)
    return value if value is not None and metric.shown(line.subject) else None


def _colours(lines: Sequence[Line]) -> list[str]:
    """The colours that the variants have in pictures."""
    variants: dict[str, dict[str, None]] = {}
    for line in lines:
        variants.setdefault(line.case.op, {})[line.case.variant] = None
    return [looks(today(line.scenario, variants[line.case.op]))[line.case.variant].color for line in lines]


def _setting(line: Line) -> str:
    """The sizes and choices of a case that aren't at their default, as its id has them."""
    return " ".join(line.case.group.split("/")[2:])


def _number(value: float | None) -> float | None:
    """The value with as many digits as matter; None for what no number can be made of."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
