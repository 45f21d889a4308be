"""What the texts claim, beside what was measured here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness import units
from harness.model import Claim, Metric, Result, Run, by_group

_NAMES: dict[Metric, str] = {
    "speedup": "speed-up",
    "traffic": "traffic",
    "bandwidth": "bandwidth",
    "of_peak": "of peak",
    "of_ceiling": "of ceiling",
    "time": "time",
}
_WORDS: dict[Metric, str] = {"speedup": "faster", "traffic": "less"}
"""What is claimed where the text gives no value."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A claim and what stands against it, as text. `measured` says why where nothing does."""

    row: str
    what: str
    claimed: str
    hardware: str
    measured: str
    text: str


def comparisons(run: Run) -> dict[str, list[Comparison]]:
    """By scenario, each of its claims with the values of all groups that it speaks of."""
    results = {result.case.id: result for result in run.results}
    found = {}
    for scenario in run.header.scenarios:
        groups = by_group(results[key] for key in scenario.cases if key in results)
        found[scenario.name] = [_comparison(run, c, c.over or scenario.baseline, groups) for c in scenario.claims]
    return found


def _comparison(run: Run, claim: Claim, over: str, groups: dict[str, list[Result]]) -> Comparison:
    relative = claim.metric in ("speedup", "traffic")
    what = f"{claim.variant}: {_NAMES[claim.metric]}" + (f" over {over}" if relative else "")
    form = units.METRICS[claim.metric]
    matching = [group for name, group in groups.items() if fnmatchcase(name, claim.where)]
    values: list[float] = []
    reasons: list[str] = [] if matching else [f"no case here is like '{claim.where}'"]
    for group in matching:
        variants = {result.case.variant: result for result in group}
        value = _value(run, claim.metric, variants.get(claim.variant), variants.get(over))
        if value is not None:
            values.append(value)
        else:
            reasons.extend(_reasons(variants, (claim.variant, over) if relative else (claim.variant,)))
    measured = _summary(values, form) if values else f"not measured: {reasons[0]}"
    claimed = _WORDS[claim.metric] if claim.value is None else form(claim.value)
    return Comparison(claim.row, what, claimed, claim.hardware, measured, claim.text)


def _value(run: Run, metric: Metric, result: Result | None, over: Result | None) -> float | None:
    """The metric of a result, in SI units; None where it, or what it is held against, has none."""
    if result is None or result.time is None:
        return None
    values: dict[Metric, Callable[[], float | None]] = {
        "speedup": lambda: over.time / result.time if over and over.time and result.time else None,
        "traffic": lambda: _moved(result) / _moved(over) if over and _moved(over) else None,
        "bandwidth": lambda: result.bandwidth,
        "of_peak": lambda: run.of_peak(result),
        "of_ceiling": lambda: run.of_ceiling(result),
        "time": lambda: result.time,
    }
    return values[metric]()


def _moved(result: Result) -> int:
    return result.traffic.moved if result.traffic else 0


def _reasons(variants: dict[str, Result], needed: tuple[str, ...]) -> Iterator[str]:
    for name in needed:
        if name not in variants:
            yield f"'{name}' wasn't run"
        elif variants[name].status != "ok":
            yield f"'{name}' ended as {variants[name].status}"
    yield "what it is held against wasn't measured"


def _summary(values: list[float], form: Callable[[float], str]) -> str:
    """One value as it is; several as their median and range."""
    middle = form(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({form(min(values))} to {form(max(values))}, {len(values)} cases)"
