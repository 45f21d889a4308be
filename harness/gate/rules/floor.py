"""Rule: a floor that the scenario expects of a variant, whatever the base does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness import units
from harness.gate._evidence import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.model import Expectation, FloorMetric, Measurement, Scenario

NEED_CEILINGS: frozenset[FloorMetric] = frozenset({"of_peak", "of_ceiling"})


@dataclass(frozen=True, slots=True)
class Held:
    """A case held to a floor. values: of the metric, one a process."""

    found: CaseEvidence
    floor: Expectation
    values: tuple[float, ...]
    over: str


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each case all of whose processes lie below its floor; a note where a floor couldn't be held."""
    for scenario in evidence.scenarios:
        for held in _held(evidence, scenario):
            yield from _judge(held)


def _judge(held: Held) -> Iterator[Finding]:
    metric, form = held.floor.metric, units.METRICS[held.floor.metric]
    name = metric.replace("_", " ") + (f" over {held.over}" if metric == "speedup" else "")
    if not held.values:
        text = f"the floor of {name}, {form(held.floor.value)}, can't be held against anything"
        yield Finding("floor", "note", text, "the case or what it is held against has no time", held.found.case)
    elif (best := max(held.values)) < held.floor.value:
        text = f"{name} {form(best)} at best, below the floor of {form(held.floor.value)} that the scenario expects"
        yield Finding("floor", "failure", text, "make it faster, or correct 'expect' in the scenario", held.found.case)


def _held(evidence: Evidence, scenario: Scenario) -> Iterator[Held]:
    """Each case of the scenario with the floors that are meant for it, the first that matches for each metric."""
    for key in scenario.cases:
        found = evidence.by_id.get(key)
        if found is None or not found.now:
            continue
        floors: dict[FloorMetric, Expectation] = {}
        for floor in scenario.expect:
            if floor.variant == found.case.variant and fnmatchcase(found.case.group, floor.where):
                floors.setdefault(floor.metric, floor)
        over = _baseline(evidence, scenario, found)
        for floor in floors.values():
            values = tuple(_values(evidence, floor.metric, found.now, over))
            yield Held(found, floor, values, scenario.baseline)


def _baseline(evidence: Evidence, scenario: Scenario, found: CaseEvidence) -> Sequence[Measurement]:
    """The baseline's measurements of the same job."""
    same = (other for other in evidence.cases if other.case.group == found.case.group)
    return next((other.now for other in same if other.case.variant == scenario.baseline), ())


def _values(
    evidence: Evidence, metric: FloorMetric, measurements: Sequence[Measurement], over: Sequence[Measurement]
) -> Iterator[float]:
    """The metric in SI units, of each process that has a time. Over the baseline's slowest process: floors are kind."""
    slowest = max((m.time for m in over if m.time is not None), default=None)
    peak = evidence.ceilings.peak if evidence.ceilings else None
    for m in measurements:
        if m.time is None or m.work is None:
            continue
        bandwidth = m.work.moved / m.time
        ceiling = evidence.ceilings.seconds(m.work) if evidence.ceilings else None
        found: dict[FloorMetric, float | None] = {
            "speedup": slowest / m.time if slowest else None,
            "bandwidth": bandwidth,
            "of_peak": bandwidth / peak if peak else None,
            "of_ceiling": ceiling / m.time if ceiling else None,
        }
        if (value := found[metric]) is not None:
            yield value
