"""Rule: a case may not fall below the floors that its scenario expects, whatever the base does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding
from harness.metrics import METRICS, Metric, Subject
from harness.model import Expectation, Scenario

ACCEPT = "cases lie below a floor, or a floor can't be checked"


@dataclass(frozen=True, slots=True)
class Held:
    """A case held to a floor. values: of the metric, one a process. over: the variant it is compared with."""

    found: CaseEvidence
    floor: Expectation
    metric: Metric
    values: tuple[float, ...]
    over: str


def judge(evidence: Evidence) -> Iterator[Finding]:
    """A failure for each case all of whose processes lie below its floor; undecided where it can't be checked."""
    for scenario, found, floor in expected(evidence):
        if metric := METRICS.get(floor.metric):
            values = tuple(_values(evidence, scenario, found, metric))
            excused = _never_ran(found) or _left_out(evidence, scenario, found, metric)
            yield from _judge(Held(found, floor, metric, values, scenario.baseline), excused)
        else:
            # A stored run may have a metric that an op of its own added.
            text = f"{floor.metric}: the floor can't be checked, since no metric of this harness has that name"
            yield Finding("floor", "undecided", text, "if that is known: --accept floor", found.case)


def expected(evidence: Evidence) -> Iterator[tuple[Scenario, CaseEvidence, Expectation]]:
    """Each measured case with each of its floors: for each metric the first floor that matches the case."""
    by_id = evidence.by_id
    for scenario in evidence.scenarios:
        for key, floor in floors_of(scenario):
            if (found := by_id.get(key)) and found.now:
                yield scenario, found, floor


def floors_of(scenario: Scenario) -> Iterator[tuple[str, Expectation]]:
    """The id of each case of a scenario with each of its floors: for each metric the first that matches the case."""
    for case in scenario.cases:
        op, variant, rest = case.split("/", 2)
        floors: dict[str, Expectation] = {}
        for floor in scenario.expect:
            if floor.variant == variant and fnmatchcase(f"{op}/{rest}", floor.where):
                floors.setdefault(floor.metric, floor)
        for floor in floors.values():
            yield case, floor


def _judge(held: Held, excused: bool) -> Iterator[Finding]:
    metric = held.metric
    name = metric.title + (f" over {held.over}" if metric.relative == "variant" else "")
    least = metric.written(held.floor.value)
    if not held.values:
        # What --only leaves out, and a case that has no time, which other rules judge, are no reason to doubt.
        text = f"{name}: the floor of {least} can't be checked"
        advice = "the case, or what it is compared with, has no value; if that is known: --accept floor"
        yield Finding("floor", "note" if excused else "undecided", text, advice, held.found.case)
    elif (best := max(held.values)) < held.floor.value:
        text = f"{name} {metric.written(best)} at best, below the floor of {least} that the scenario expects"
        advice = "make it faster, or correct 'expect' in the scenario"
        yield Finding("floor", "failure", text, advice, held.found.case, rests_on=("now",))


def _values(evidence: Evidence, scenario: Scenario, found: CaseEvidence, metric: Metric) -> Iterator[float]:
    """The metric in SI units, of each process that has a value.

    Of the baseline, and of the same case on one device, the slowest process counts: a floor fails only what is
    certain. A variant that can't run on one device is compared with the baseline there.
    """
    over = _slowest(evidence, replace(found.case, variant=scenario.baseline).id)
    alone = None
    if found.case.world > 1:
        on_one = replace(found.case, world=1)
        own = evidence.by_id.get(on_one.id)
        if own is None or all(m.status == "unsupported" for m in own.now):
            on_one = replace(on_one, variant=scenario.baseline)
        alone = _slowest(evidence, on_one.id)
    for m in found.now:
        subject = replace(Subject.of(m, evidence.limits), over=over, alone=alone)
        if m.time is not None and (value := metric.value(subject)) is not None:
            yield value


def _left_out(evidence: Evidence, scenario: Scenario, found: CaseEvidence, metric: Metric) -> bool:
    """Whether --only leaves out the case that the metric compares this one with."""
    others = {"variant": replace(found.case, variant=scenario.baseline), "world": replace(found.case, world=1)}
    other = others.get(metric.relative)
    return other is not None and other.id not in evidence.by_id and other.id in evidence.known


def _never_ran(found: CaseEvidence) -> bool:
    return all(m.time is None for m in found.now)


def _slowest(evidence: Evidence, case: str) -> Subject | None:
    """The slowest process of a case; None if none has a time."""
    found = evidence.by_id.get(case)
    subjects = [Subject.of(m, evidence.limits) for m in (found.now if found else ()) if m.time is not None]
    return max(subjects, key=lambda subject: subject.time or 0.0, default=None)
