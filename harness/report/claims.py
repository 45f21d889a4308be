"""The claims of a scenario, each with what was measured here and a verdict from intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.metrics import METRICS, Metric, named
from harness.model import Case, Claim, Run, Scenario, Value
from harness.model.case import written
from harness.report import frame
from harness.report.bounded import Bounded, Pass, bounded
from harness.report.counted import LIMIT, bytes_of
from harness.report.frame import Line

Verdict = Literal["agrees", "disagrees", "can't tell"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "disagrees", "can't tell")
SAME = 0.01
"""A ratio this close to 1 is no difference: as close as the gate's usual margin."""
_TRAFFIC = "traffic"
"""The metric whose bytes counters see, where both cases have some."""
By = Mapping[str, Line]
"""The lines of one group by their variant."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of one case of a claim.

    verdict: None for a claim that isn't judged. lines: of the case, and of the case that it is compared with. count:
    the figure by count, where counters of bytes answer.
    """

    figure: Bounded
    verdict: Verdict | None
    lines: tuple[Line, ...]
    count: float | None = None

    @property
    def is_by_counters(self) -> bool:
        return self.count is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim and what was found of each case that it is about.

    over: what it is compared with, in words; '' if with nothing. cases: how many have a figure; where counters answer,
    `found` has only the cases with counters. reason: why there is no figure.
    """

    claim: Claim
    metric: Metric
    over: str
    found: tuple[Found, ...]
    cases: int
    reason: str = ""

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(one.figure.value for one in self.found)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """From the lowest to the highest bound of the intervals of all cases; None if a case has no interval."""
        lows = [one.figure.low for one in self.found if one.figure.low is not None]
        highs = [one.figure.high for one in self.found if one.figure.high is not None]
        return (min(lows), max(highs)) if lows and len(lows) == len(highs) == len(self.found) else None

    @property
    def is_by_counters(self) -> bool:
        return self.metric.by_counters or any(one.is_by_counters for one in self.found)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that all cases have, and "can't tell" where they differ; None for a claim that isn't judged."""
        every = {one.verdict for one in self.found}
        return None if not every or None in every else every.pop() if len(every) == 1 else "can't tell"

    @property
    def told(self) -> str:
        """The verdict in words: where cases differ, with the number of cases that have each."""
        verdict = self.verdict
        if verdict is None:
            return ""
        counts = Counter(one.verdict for one in self.found)
        if len(counts) == 1:
            return verdict
        (first, *rest) = [f"{each} in {counts[each]}" for each in VERDICTS if counts[each]]
        return f"{verdict}: {', '.join([f'{first} of {len(self.found)} cases', *rest])}"


def comparisons(scenario: Scenario, run: Run) -> list[Comparison]:
    """Each claim of a scenario of the run with what was found of all cases that it is about."""
    lines = [line for line in frame.lines(run) if line.scenario.name == scenario.name]
    groups: dict[str, dict[str, Line]] = {}
    for line in lines:
        groups.setdefault(line.case.group, {})[line.case.variant] = line
    by_values: dict[Hashable, By] = {_key(_case(group)): group for group in groups.values()}
    return [_comparison(claim, scenario, by_values, frame.passes(run)) for claim in scenario.claims]


def _case(group: By) -> Case:
    """A case of the group, for all that doesn't depend on the variant."""
    return next(iter(group.values())).case


def _key(case: Case, base: Mapping[str, int | Value] | None = None) -> Hashable:
    """What a group of cases is told by, with the sizes and choices of `base` in place of its own."""
    values = {**case.values, **(base or {})}
    return case.dtype, case.cache, *sorted((name, written(value)) for name, value in values.items())


def _comparison(claim: Claim, scenario: Scenario, groups: Mapping[Hashable, By], passes: Sequence[Pass]) -> Comparison:
    metric = named(claim.metric)
    is_compared = metric.relative == "variant"
    over = claim.over or (claim.variant if claim.base else scenario.baseline) if is_compared else ""
    matching = [group for group in groups.values() if _case(group).group_matches(claim.where)]
    found: list[Found] = []
    for group in matching:
        other = groups.get(_key(_case(group), dict(claim.base)), {}) if claim.base else group
        own, base = group.get(claim.variant), other.get(over) if is_compared else None
        if own and (base or not is_compared) and (one := _found(claim, metric, own, base, passes)):
            found.append(one)
    seen = tuple(one for one in found if one.is_by_counters)
    reason = "" if found else _reason(claim, over, matching, groups)
    return Comparison(claim, metric, _named(claim, over), seen or tuple(found), len(found), reason)


def _named(claim: Claim, over: str) -> str:
    base = ", ".join(f"{name}={written(value)}" for name, value in claim.base)
    if not over or not base:
        return over
    return base if over == claim.variant else f"{over} at {base}"


def _found(claim: Claim, metric: Metric, own: Line, base: Line | None, passes: Sequence[Pass]) -> Found | None:
    known = bounded(metric, own, base, passes)
    if known is None:
        return None
    lines = (own, base) if base else (own,)
    if base and claim.metric == _TRAFFIC and (seen := _by_counters(own, base)):
        return Found(seen, judged(claim, metric, seen), lines, known.value)
    return Found(known, judged(claim, metric, known), lines)


def _by_counters(own: Line, base: Line) -> Bounded | None:
    """The ratio of the bytes that counters saw of both cases; None without both."""
    seen, other = bytes_of(own), bytes_of(base)
    if not seen or not other or not other[1].moved:
        return None
    ratio = seen[1].moved / other[1].moved
    return Bounded(ratio, ratio, ratio, "counters", 1)


# ---- The verdict.


def judged(claim: Claim, metric: Metric, found: Bounded) -> Verdict | None:
    """Whether a figure is as the text says: all of its interval, nothing of it, or neither; None if it isn't judged.

    A time or a rate of other hardware can't tell, and neither can a figure by count, which no measurement is in.
    """
    allowed = zone(claim, metric)
    if allowed is None:
        return None
    is_count = metric.by_count and found.over != "counters"
    if found.low is None or found.high is None or is_count or is_of_other_hardware(claim, metric):
        return "can't tell"
    if allowed[0] <= found.low and found.high <= allowed[1]:
        return "agrees"
    return "disagrees" if found.high < allowed[0] or found.low > allowed[1] else "can't tell"


def is_of_other_hardware(claim: Claim, metric: Metric) -> bool:
    """Whether a text's figure is a time or a rate, which another machine neither has to have nor can have."""
    return claim.value is not None and metric.is_of_hardware


def zone(claim: Claim, metric: Metric) -> tuple[float, float] | None:
    """The figures that are as the text says, from the first to the second; None if the text says nothing of it."""
    if claim.says == "nothing":
        return None
    is_more = is_at_least(claim, metric)
    if claim.value is None:
        return (1 + SAME, math.inf) if is_more else (-math.inf, 1 / (1 + SAME))
    near = claim.within * abs(claim.value)
    low, high = claim.value - near, claim.value + near
    if claim.says == "equal":
        return low, high
    return (low, math.inf) if is_more else (-math.inf, high)


def is_at_least(claim: Claim, metric: Metric) -> bool:
    """Whether a figure as large as the text's, or larger, is what the text says."""
    return (claim.says == "better") == (metric.better != "lower")


def contradicted(found: Sequence[Found]) -> tuple[float, ...]:
    """The figures by count of the cases with counters, if counters are too far from one of them."""
    seen = [(one.figure.value, one.count) for one in found if one.count is not None]
    far = any(abs(counters - count) > LIMIT * count for counters, count in seen)
    return tuple(count for _, count in seen) if far else ()


# ---- Why there is no figure.


def _reason(claim: Claim, over: str, matching: Sequence[By], groups: Mapping[Hashable, By]) -> str:
    """Why no group gives a figure: of a variant that only some groups have, it isn't said that it wasn't run."""
    metric = named(claim.metric)
    needed = (claim.variant, over) if metric.relative == "variant" and not claim.base else (claim.variant,)
    group = max(matching, key=lambda group: len({*needed} & group.keys()), default=None)
    if group is None:
        return f"no case here is like '{claim.where}'"
    if claim.base and claim.variant in group:
        base = groups.get(_key(group[claim.variant].case, dict(claim.base)), {})
        if over not in base or base[over].result.time is None:
            return f"{_named(claim, over)} wasn't measured"
    return next(_reasons(group, needed, metric))


def _reasons(group: By, needed: tuple[str, ...], metric: Metric) -> Iterator[str]:
    for name in needed:
        if name not in group:
            yield f"'{name}' wasn't run"
        elif group[name].result.status != "ok":
            yield f"'{name}' ended as {group[name].result.status}"
    if metric.name not in METRICS:
        yield f"there is no metric named '{metric.name}'; name the file of the op that adds it, with --ops"
    elif metric.by_counters:
        yield "counters of both are needed, which 'harness profile ncu' finds"
    elif metric.relative == "variant":
        yield f"this run doesn't say the {metric.title}"
    elif metric.relative or metric.of_limits:
        yield "what it is compared with wasn't measured"
    else:
        yield f"'{needed[0]}' has no {metric.title}"
