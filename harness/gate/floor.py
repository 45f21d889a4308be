"""Rule: a floor that the scenario expects of a variant, whatever the base does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness import units
from harness.gate._evidence import Evidence
from harness.model import Expectation, Measurement, Metric, Scenario
from harness.verdict import CaseEvidence, Finding

NEED_CEILINGS: frozenset[Metric] = frozenset({"of_peak", "of_ceiling"})
# Of these less is better, so what the scenario names is the most that is allowed. Today's scenarios can't ask for them,
# those of stored runs may.
_LESS_IS_BETTER: frozenset[Metric] = frozenset({"time", "traffic"})


@dataclass(frozen=True, slots=True)
class Held:
    """A case held to a floor. values: of the metric, one a process."""

    found: CaseEvidence
    floor: Expectation
    values: tuple[float, ...]
    over: str

    @property
    def less_is_better(self) -> bool:
        return self.floor.metric in _LESS_IS_BETTER

    @property
    def best(self) -> float:
        return min(self.values) if self.less_is_better else max(self.values)

    @property
    def failed(self) -> bool:
        """Whether the whole spread lies on the wrong side."""
        return self.best > self.floor.value if self.less_is_better else self.best < self.floor.value


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
    elif held.failed:
        limit = "more than the" if held.less_is_better else "below the floor of"
        text = f"{name} {form(held.best)} at best, {limit} {form(held.floor.value)} that the scenario expects"
        yield Finding("floor", "failure", text, "make it faster, or correct 'expect' in the scenario", held.found.case)


def _held(evidence: Evidence, scenario: Scenario) -> Iterator[Held]:
    """Each case of the scenario with the floors that are meant for it, the first that matches for each metric."""
    for key in scenario.cases:
        found = evidence.by_id.get(key)
        if found is None or not found.now:
            continue
        floors: dict[Metric, Expectation] = {}
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
    evidence: Evidence, metric: Metric, measurements: Sequence[Measurement], over: Sequence[Measurement]
) -> Iterator[float]:
    """The metric in SI units, of each process that has a time. Over the baseline's slowest process: floors are kind."""
    slowest = max((m.time for m in over if m.time is not None), default=None)
    peak = evidence.ceilings.peak if evidence.ceilings else None
    for m in measurements:
        if m.time is None or m.work is None:
            continue
        bandwidth = m.work.moved / m.time
        ceiling = evidence.ceilings.seconds(m.work) if evidence.ceilings else None
        other = next((o.traffic.moved for o in over if o.traffic), 0)
        found: dict[Metric, float | None] = {
            "speedup": slowest / m.time if slowest else None,
            "bandwidth": bandwidth,
            "of_peak": bandwidth / peak if peak else None,
            "of_ceiling": ceiling / m.time if ceiling else None,
            "time": m.time,
            "traffic": m.traffic.moved / other if m.traffic and other else None,
        }
        if (value := found[metric]) is not None:
            yield value
