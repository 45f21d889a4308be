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

NO_FIGURE = "no figure"
"""What stands in the place of a claimed value where the text gives none."""
BY_COUNT = "by count"
_SAME = 0.01
"""A ratio this close to 1 is no difference: as close as the gate's usual margin."""
By = dict[str, Line]
"""The lines of one group by their variant."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim and what was measured here: values, or a sentence that says why there are none.

    by_count: the values are computed from what the op declares. agrees: whether the values are as the text says, where
    it says only that the variant is better; empty where there is nothing to agree with.
    """

    claim: Claim
    what: str
    claimed: Cell
    measured: Cell
    by_count: bool = False
    agrees: str = ""


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
        _claimed(claim, metric),
        Quantities(tuple(values), metric.unit) if values else f"not measured: {reasons[0]}",
        metric.by_count and bool(values),
        _agrees(claim, metric, values),
    )


def _claimed(claim: Claim, metric: Metric) -> Cell:
    if claim.value is not None:
        return Quantities((claim.value,), metric.unit)
    return metric.said if claim.says == "better" else NO_FIGURE


def _agrees(claim: Claim, metric: Metric, values: Sequence[float]) -> str:
    """In how many of the cases the variant is better than the other one, where the text says that it is."""
    if claim.value is not None or claim.says != "better" or metric.relative != "variant" or metric.by_count:
        return ""
    gains = [value if metric.better == "higher" else 1 / value for value in values]
    better, worse = sum(gain > 1 + _SAME for gain in gains), sum(gain < 1 - _SAME for gain in gains)
    if not values:
        return ""
    if better == len(values):
        return "yes"
    if not better:
        return "no" if worse else "no: the same"
    return f"in {better} of {len(values)} cases"


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
    elif metric.relative == "variant":
        yield f"this run doesn't say the {metric.title}"
    elif metric.relative or metric.of_limits:
        yield "what it is compared with wasn't measured"
    else:
        yield f"'{needed[0]}' has no {metric.title}"


def table(found: Sequence[Comparison]) -> Table:
    """The comparisons as a table, without columns that would be empty."""
    counted = any(c.by_count for c in found)
    made = (
        text_column("row", (c.claim.row for c in found)),
        text_column("what", (c.what for c in found)),
        Column("claimed", tuple(c.claimed for c in found)),
        text_column("on", ("" if c.claimed == NO_FIGURE else c.claim.hardware for c in found)),
        Column("here", tuple(c.measured for c in found), right=False),
        text_column("how", (_how(c) if counted else "" for c in found)),
        text_column("agrees", (c.agrees for c in found)),
        text_column("in words", (c.claim.text for c in found)),
    )
    return Table(tuple(column for column in made if not column.is_empty))


def notes(found: Sequence[Comparison]) -> list[Note]:
    """The comparisons as sentences."""
    return [Note(_sentence(c)) for c in found]


def _sentence(c: Comparison) -> str:
    here = f"here {cell(c.measured)}" + (f" {BY_COUNT}" if c.by_count else "")
    if c.claimed == NO_FIGURE:
        return f"{c.claim.row} has no figure in the text ({c.what}): {here}"
    agrees = f"; agrees: {c.agrees}" if c.agrees else ""
    return f"{c.claim.row} claims {cell(c.claimed)} ({c.what}, {c.claim.hardware}): {here}{agrees}"


def _how(c: Comparison) -> str:
    """How the values were found; empty where there are none."""
    return "" if isinstance(c.measured, str) else BY_COUNT if c.by_count else "measured"


def explained(found: Sequence[Comparison], machine: str) -> Iterator[str]:
    """What the words of the table mean, a sentence or two for each of them that it has."""
    yield f"What the texts say about their hardware, beside what was found here on {machine}."
    if any(c.claimed == NO_FIGURE for c in found):
        yield "No figure: the text describes the technique, but gives no figure for it."
    if any(c.agrees for c in found):
        yield f"Agrees: whether the variant is better by more than {_SAME:.0%}, where the text says only that it is."
    if any(c.by_count for c in found):
        yield (
            "By count: computed from the bytes that the op and its variants declare. No measurement is in it, so it "
            "can't disagree with the text."
        )
