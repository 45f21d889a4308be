"""Rule: the scenarios must hold the cases to as much as the base's scenarios do.

Cases that are gone are left to the rule `missing`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from harness.gate.case_lists import role_of
from harness.gate.evidence import Evidence
from harness.gate.records import Finding
from harness.gate.rules.floor import floors_of
from harness.metrics import METRICS
from harness.model import LIBRARY_ROLES, Scenario

ACCEPT = "the scenarios ask for less than the base's scenarios: a floor is lowered or removed, or a role is changed"
_KEEP = "bring it back, or, if that is meant: --accept scenario"
_Key = tuple[str, str, str]
"""A case's id, a metric, and the variant that the metric compares with; empty for most."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    """Failures where the scenarios ask for less; undecided where what the base asks for isn't known."""
    for why in evidence.untold:
        advice = "read yourself what changed in the scenario: --accept scenario; or name a later base"
        yield Finding("scenario", "undecided", why, advice)
    yield from _floors(evidence)
    yield from _roles(evidence)


def _floors(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each floor that is lower or gone, with the number of cases that it held."""
    before, after = _strictest(evidence.before), _strictest(evidence.asked)
    lower: dict[str, list[str]] = defaultdict(list)
    for (case, name, over), least in before.items():
        now = after.get((case, name, over))
        if case not in evidence.known or (now is not None and now >= least):
            continue
        metric = METRICS.get(name)
        title = (metric.title if metric else name) + (f" over {over}" if over else "")
        write = metric.written if metric else "{:g}".format
        change = "is gone" if now is None else f"is {write(now)} now"
        lower[f"the floor of {title}, {write(least)} in {evidence.base}, {change}"].append(case)
    for text, cases in lower.items():
        yield Finding("scenario", "failure", f"{text}: {_named(cases)}", _KEEP)


def _strictest(scenarios: Sequence[Scenario]) -> dict[_Key, float]:
    """The floors that each case is held to. Of several scenarios the strictest counts, since each of them holds."""
    found: dict[_Key, float] = {}
    for scenario in scenarios:
        for case, floor in floors_of(scenario):
            metric = METRICS.get(floor.metric)
            over = scenario.baseline if metric and metric.relative == "variant" else ""
            key = (case, floor.metric, over)
            found[key] = max(floor.value, found.get(key, floor.value))
    return found


def _roles(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each variant that was ours and is held to less now, by its role."""
    changed: dict[str, list[str]] = defaultdict(list)
    for scenario in evidence.before:
        for case in scenario.cases:
            op, variant, _ = case.split("/", 2)
            was, now = (role_of(op, variant, scenarios) for scenarios in (evidence.before, evidence.asked))
            less = ""
            if was not in LIBRARY_ROLES and now in LIBRARY_ROLES:
                less = "its losses don't count"
            elif was == "ours" != now:
                less = "it may be wrong where inputs are extreme"
            if case in evidence.known and less:
                changed[f"{op}/{variant} has the role '{now}' now, '{was}' in {evidence.base}, so {less}"].append(case)
    for text, cases in changed.items():
        yield Finding("scenario", "failure", f"{text}: {_named(cases)}", _KEEP)


def _named(cases: Sequence[str]) -> str:
    unique = list(dict.fromkeys(cases))
    return unique[0] + (f" and {len(unique) - 1} more" if len(unique) > 1 else "")
