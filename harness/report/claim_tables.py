"""The claims of public texts, beside what was measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.metrics import METRICS, Metric, named
from harness.model import Claim, Scenario
from harness.report.counted import LIMIT, bytes_of
from harness.report.frame import Line
from harness.report.text import cell
from harness.report.tree import Cell, Column, Note, Quantities, Table, text_column

MEASURED = "measured"
NO_FIGURE = "no figure"
"""What stands in the place of a claimed value where the text gives none."""
BY_COUNT = "by count"
BY_COUNTERS = "by counters"
BY_TRACE = "by a trace"
_TRAFFIC = "traffic"
"""The metric that counters answer, where both cases have some."""
_SAME = 0.01
"""A ratio this close to 1 is no difference: as close as the gate's usual margin."""
By = dict[str, Line]
"""The lines of one group by their variant."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim and what was measured here: values, or a sentence that says why there are none.

    how: 'measured', 'by counters', 'by a trace', 'by count' (computed from what the op declares), with the number of
    cases where only some have counters; empty where there are no values. counts: by count, where the values are by
    counters and a count is another one. agrees: whether the values are as the text says; empty where there is nothing
    to agree with.
    """

    claim: Claim
    what: str
    claimed: Cell
    measured: Cell
    how: str = ""
    counts: Quantities | None = None
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
    matching = [group for group in groups.values() if next(iter(group.values())).case.group_matches(claim.where)]
    counts: list[float] = []
    seen: list[tuple[float, float]] = []
    for group in matching:
        value, counters = _value(claim, group, over), _by_counters(claim, group, over)
        if value is None:
            continue
        counts.append(value)
        if counters is not None:
            seen.append((counters, value))
    values = tuple(counters for counters, _ in seen) or tuple(counts)
    return Comparison(
        claim,
        f"{claim.variant}: {metric.title}" + (f" over {over}" if relative else ""),
        _claimed(claim, metric),
        Quantities(values, metric.unit) if values else f"not measured: {_reason(claim, over, matching)}",
        _how(metric, len(seen), len(counts)),
        _contradicted(seen, metric),
        _agrees(claim, metric, values, bool(seen)),
    )


def _by_counters(claim: Claim, group: By, over: str) -> float | None:
    """The ratio of the bytes that counters saw of both variants; None without both, or for another metric."""
    if claim.metric != _TRAFFIC or not {claim.variant, over} <= group.keys():
        return None
    seen, other = bytes_of(group[claim.variant]), bytes_of(group[over])
    return seen[1].moved / other[1].moved if seen and other and other[1].moved else None


def _how(metric: Metric, seen: int, cases: int) -> str:
    """How the values were found, and in how many cases if only some of them have counters."""
    if not cases:
        return ""
    if seen:
        return BY_COUNTERS + (f" ({seen} of {cases} cases)" if seen < cases else "")
    if metric.by_trace:
        return BY_TRACE
    return BY_COUNT if metric.by_count else MEASURED


def _contradicted(seen: Sequence[tuple[float, float]], metric: Metric) -> Quantities | None:
    """The values by count of the cases with counters, if counters contradict one of them: they are too far from it.

    seen: for each case the value by counters, and by count. Counts that are written alike stand there once.
    """
    if all(abs(counters - count) <= LIMIT * count for counters, count in seen):
        return None
    counts = tuple(count for _, count in seen)
    return Quantities(counts if len(set(map(metric.written, counts))) > 1 else counts[:1], metric.unit)


def _claimed(claim: Claim, metric: Metric) -> Cell:
    if claim.value is not None:
        return Quantities((claim.value,), metric.unit)
    return metric.said if claim.says == "better" else NO_FIGURE


def _agrees(claim: Claim, metric: Metric, values: Sequence[float], seen: bool) -> str:
    """In how many of the cases the values are as the text says. seen: the values are by counters.

    A text without a figure says that the variant is better. A text's figure is of its own hardware, so no other
    machine has to agree with it; but a ratio of bytes is the same everywhere, so counters agree with it or don't.
    """
    if not values or claim.says != "better" or metric.relative != "variant" or (metric.by_count and not seen):
        return ""
    if claim.value is not None:
        as_said = sum(abs(value - claim.value) <= LIMIT * claim.value for value in values)
        return _in_how_many(as_said, len(values), "no") if seen else ""
    gains = [value if metric.better == "higher" else 1 / value for value in values]
    worse = sum(gain < 1 - _SAME for gain in gains)
    return _in_how_many(sum(gain > 1 + _SAME for gain in gains), len(values), "no" if worse else "no: the same")


def _in_how_many(agreeing: int, cases: int, none: str) -> str:
    return "yes" if agreeing == cases else none if not agreeing else f"in {agreeing} of {cases} cases"


def _value(claim: Claim, group: By, over: str) -> float | None:
    """The metric of the claim's variant; None if that variant, or the one it is compared with, has no value."""
    line, other = group.get(claim.variant), group.get(over)
    if line is None:
        return None
    return named(claim.metric).value(line.subject.against(other.subject if other else None))


def _reason(claim: Claim, over: str, matching: Sequence[By]) -> str:
    """Why no group gives a value: of a variant that only some groups have, it isn't said that it wasn't run."""
    metric = named(claim.metric)
    needed = (claim.variant, over) if metric.relative == "variant" else (claim.variant,)
    group = max(matching, key=lambda group: len({*needed} & group.keys()), default=None)
    return next(_reasons(group, needed, metric)) if group else f"no case here is like '{claim.where}'"


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
    told = any(c.how != MEASURED for c in found if c.how)
    made = (
        text_column("row", (c.claim.row for c in found)),
        text_column("what", (c.what for c in found)),
        Column("claimed", tuple(c.claimed for c in found)),
        text_column("on", ("" if c.claimed == NO_FIGURE else c.claim.hardware for c in found)),
        Column("here", tuple(c.measured for c in found), right=False),
        text_column("how", (_told(c) if told else "" for c in found)),
        text_column("agrees", (c.agrees for c in found)),
        text_column("in words", (c.claim.text for c in found)),
    )
    return Table(tuple(column for column in made if not column.is_empty))


def notes(found: Sequence[Comparison]) -> list[Note]:
    """The comparisons as sentences."""
    return [Note(_sentence(c)) for c in found]


def _sentence(c: Comparison) -> str:
    here = f"here {cell(c.measured)}" + (f" {_told(c)}" if c.how != MEASURED and c.how else "")
    if c.claimed == NO_FIGURE:
        return f"{c.claim.row} has no figure in the text ({c.what}): {here}"
    agrees = f"; agrees: {c.agrees}" if c.agrees else ""
    return f"{c.claim.row} claims {cell(c.claimed)} ({c.what}, {c.claim.hardware}): {here}{agrees}"


def _told(c: Comparison) -> str:
    """How the values were found, with the values by count where counters contradict them."""
    return f"{c.how}, not {cell(c.counts)} as counted" if c.counts else c.how


def explained(found: Sequence[Comparison], machine: str) -> Iterator[str]:
    """What the words of the table mean, a sentence or two for each of them that it has."""
    yield f"What the texts say about their hardware, beside what was found here on {machine}."
    seen = [c for c in found if c.how.startswith(BY_COUNTERS)]
    if any(c.claimed == NO_FIGURE for c in found):
        yield "No figure: the text describes the technique, but gives no figure for it."
    if any(c.agrees and c.claim.value is None for c in found):
        yield f"Agrees: whether the variant is better by more than {_SAME:.0%}, where the text says only that it is."
    if any(c.agrees and c.claim.value is not None for c in found):
        yield f"Agrees, of a ratio of bytes: whether counters are within {LIMIT:.0%} of the text's figure."
    if any(c.how == BY_COUNT for c in found):
        yield (
            "By count: computed from the bytes that the op and its variants declare. No measurement is in it, so it "
            "can't disagree with the text."
        )
    if any(c.how == BY_TRACE for c in found):
        yield "By a trace: the time of kernels over the time in which any kernel ran, as torch's profiler saw them."
    if seen:
        yield (
            "By counters: the ratio of the bytes that hardware counters saw go through the device's memory. Where the "
            f"declared bytes give a ratio that is more than {LIMIT:.0%} away from it, that ratio stands there too."
        )
    if any(c.how != BY_COUNTERS for c in seen):
        yield "By counters in some cases: the other cases have no counters, and no part in the figure."
