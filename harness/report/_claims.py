"""The claims of public texts, beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.metrics import METRICS, Metric, named
from harness.model import Claim, Scenario
from harness.report._frame import Line
from harness.report._text import cell
from harness.report.tree import Cell, Column, Note, Quantities, Table, text_column

By = dict[str, Line]
"""The lines of one group by their variant."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim and what was measured here: values, or a sentence that says why there are none."""

    claim: Claim
    what: str
    claimed: Cell
    measured: Cell


def comparisons(scenario: Scenario, lines: Sequence[Line]) -> list[Comparison]:
    """Each claim of the scenario with the values of all groups of cases that it is about."""
    groups: dict[str, By] = {}
    for line in lines:
        groups.setdefault(line.case.group, {})[line.case.variant] = line
    return [_comparison(claim, claim.over or scenario.baseline, groups) for claim in scenario.claims]


def _comparison(claim: Claim, over: str, groups: dict[str, By]) -> Comparison:
    metric = named(claim.metric)
    relative = metric.relative == "variant"
    matching = [group for name, group in groups.items() if fnmatchcase(name, claim.where)]
    values: list[float] = []
    reasons: list[str] = [] if matching else [f"no case here is like '{claim.where}'"]
    for group in matching:
        value = _value(claim, group, over)
        if value is not None:
            values.append(value)
        else:
            reasons.extend(_reasons(group, (claim.variant, over) if relative else (claim.variant,), metric))
    return Comparison(
        claim,
        f"{claim.variant}: {metric.title}" + (f" over {over}" if relative else ""),
        metric.said if claim.value is None else Quantities((claim.value,), metric.unit),
        Quantities(tuple(values), metric.unit) if values else f"not measured: {reasons[0]}",
    )


def _value(claim: Claim, group: By, over: str) -> float | None:
    """The metric of the claim's variant; None if that variant, or the one it is compared with, has no value."""
    line, other = group.get(claim.variant), group.get(over)
    if line is None:
        return None
    return named(claim.metric).value(line.subject.against(other.subject if other else None))


def _reasons(group: By, needed: tuple[str, ...], metric: Metric) -> Iterator[str]:
    for name in needed:
        if name not in group:
            yield f"'{name}' wasn't run"
        elif group[name].result.status != "ok":
            yield f"'{name}' ended as {group[name].result.status}"
    if metric.name not in METRICS:
        yield f"there is no metric named '{metric.name}'; name the file of the op that adds it, with --ops"
    elif metric.relative or metric.of_limits:
        yield "what it is compared with wasn't measured"
    else:
        yield f"'{needed[0]}' has no {metric.title}"


def table(found: Sequence[Comparison]) -> Table:
    """The comparisons as a table, without columns that would be empty."""
    made = (
        text_column("row", (c.claim.row for c in found)),
        text_column("what", (c.what for c in found)),
        Column("claimed", tuple(c.claimed for c in found)),
        text_column("on", (c.claim.hardware for c in found)),
        Column("measured here", tuple(c.measured for c in found), right=False),
        text_column("in the text's words", (c.claim.text for c in found)),
    )
    return Table(tuple(column for column in made if not column.is_empty))


def notes(found: Sequence[Comparison]) -> list[Note]:
    """The comparisons as sentences."""
    return [
        Note(
            f"{c.claim.row} claims {cell(c.claimed)} ({c.what}, {c.claim.hardware}): here {cell(c.measured)}",
        )
        for c in found
    ]
