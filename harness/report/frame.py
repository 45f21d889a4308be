"""A run as lines: one a case of each scenario, with every metric. Every report reads them, so figures agree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness import metrics
from harness.metrics import Subject
from harness.model import Attachment, Case, Result, Run, Scenario, Value, by_group
from harness.report import tool_figures
from harness.report.roles import roles

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Line:
    """A case of a scenario, with its metrics by name, and what tools found about it; SI units.

    attached: figures of all attachments as '<tool>.<name>'. attachments: in the order in which they were attached.
    """

    scenario: Scenario
    result: Result
    role: str
    subject: Subject
    values: dict[str, float | None]
    attached: dict[str, float]
    attachments: tuple[Attachment, ...] = ()

    @property
    def case(self) -> Case:
        return self.result.case


@lru_cache(maxsize=1)
def lines(run: Run) -> tuple[Line, ...]:
    """A line for each measured case of each scenario; the cases of a group stand together.

    Metrics that compare with another variant take the scenario's baseline in the same group. Metrics that compare with
    one device take the same variant on one device. A variant that needs several devices is compared with the baseline
    on one device. A variant that failed on one device is compared with nothing: its step may not be the baseline's.
    """
    return tuple(_lines(run))


def _lines(run: Run) -> Iterator[Line]:
    results = {result.case.id: result for result in run.results}
    subjects = metrics.subjects(results.values(), run.limits)
    attachments: dict[str, list[Attachment]] = defaultdict(list)
    for attachment in run.attachments:
        attachments[attachment.case].append(attachment)
    for scenario in run.header.scenarios:
        measured = [results[key] for key in scenario.cases if key in results]
        role = roles(scenario, (result.case.variant for result in measured))
        for group in by_group(measured).values():
            baseline = {result.case.variant: subjects[result.case.id] for result in group}.get(scenario.baseline)
            for result in group:
                case, key = result.case, result.case.id
                own = tuple(attachments.get(key, ()))
                subject = subjects[key].against(baseline)
                if case.world > 1:
                    subject = _beside_one(subject, case, scenario, results, subjects)
                if own:
                    told = metrics.told(tool_figures.every(own), result.time)
                    subject = replace(subject, facts={**subject.facts, **told})
                attached = tool_figures.of_call(own)
                yield Line(scenario, result, role[case.variant], subject, metrics.values(subject), attached, own)


def _beside_one(
    subject: Subject, case: Case, scenario: Scenario, results: Mapping[str, Result], subjects: Mapping[str, Subject]
) -> Subject:
    """The subject of a case of several devices, compared with the baseline on one where the variant needs several."""
    on_one = replace(case, world=1)
    if on_one.id in results and results[on_one.id].status != "unsupported":
        return subject
    return replace(subject, alone=subjects.get(replace(on_one, variant=scenario.baseline).id))


@lru_cache(maxsize=1)
def passes(run: Run) -> tuple[dict[tuple[str, str], Line], ...]:
    """The lines of each process by themselves, by scenario and case, without what tools found; none for one process."""
    numbers = sorted({measurement.process for measurement in run.measurements})
    if len(numbers) < 2:
        return ()
    alone = (
        replace(run, attachments=(), measurements=tuple(m for m in run.measurements if m.process == number))
        for number in numbers
    )
    return tuple({(line.scenario.name, line.case.id): line for line in _lines(one)} for one in alone)


def by_scenario(run: Run) -> Iterator[tuple[Scenario, list[Line]]]:
    """Each scenario of the run that has lines, with its lines."""
    every = lines(run)
    for scenario in run.header.scenarios:
        own = [line for line in every if line.scenario.name == scenario.name]
        if own:
            yield scenario, own


def records(run: Run) -> list[dict[str, Any]]:
    """One record a line, for other programs: names, sizes, choices, metrics, conditions of the measurement, findings.

    Every record has the same keys: a metric that only some ops have is there if some case has it. None stands for what
    isn't known.
    """
    made = [_record(line) for line in lines(run)]
    found = {part: dict.fromkeys(key for record in made for key in record[part]) for part in _PARTS}
    computed = [name for name, metric in metrics.METRICS.items() if name in found["metrics"] and not metric.reported]
    keys = dict.fromkeys(key for part in _PARTS for key in (*(computed if part == "metrics" else ()), *found[part]))
    return [{key: merged.get(key) for key in keys} for record in made if (merged := _merged(record))]


_PARTS = ("names", "sizes", "place", "metrics", "measured", "attached")
"""Parts of a record, in the order of columns: what only some cases have stands with its like."""


def _merged(record: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {key: value for part in _PARTS for key, value in record[part].items()}


def _record(line: Line) -> dict[str, dict[str, Any]]:
    case, result = line.case, line.result
    first = result.measurements[0]
    own: dict[str, dict[str, Any]] = {
        "names": {
            "scenario": line.scenario.name,
            "case": case.id,
            "op": case.op,
            "variant": case.variant,
            "role": line.role,
            "dtype": case.dtype,
            "shape": case.shape_text,
        },
        "place": {
            "choices": case.choices_text,
            "world": case.world,
            "cache": case.cache,
            "device": case.device,
            "status": result.status,
        },
        "metrics": dict(line.values),
        "measured": {
            "item": result.work.item if result.work else "",
            "bound": line.subject.bound.limit if line.subject.bound else "",
            "processes": len(result.measurements),
            "samples": sum(len(m.samples) for m in result.measurements),
            "timer": result.timer,
            "stopped": first.stopped,
            "code": first.code.digest if first.code else "",
            "warnings": ";".join(warning.code for warning in result.warnings),
            "error": result.error or "",
        },
        "attached": dict(line.attached),
    }
    taken = {key for part in own.values() for key in part} | metrics.METRICS.keys()
    # A plug-in may call a symbol 'samples'; neither column may hide the other.
    sizes = {f"{name}_symbol" if name in taken else name: size for name, size in case.shape}
    options = {f"{name}_choice" if name in taken else name: value for name, value in case.choices}
    return own | {"sizes": sizes | options}


@lru_cache(maxsize=1)
def frame(run: Run) -> pd.DataFrame:
    """The records as a table, with NaN where a number isn't known. Formats share it; none may change it."""
    import pandas as pd

    # NaN, not None: a column that is unknown throughout still holds numbers.
    return pd.DataFrame(
        [{key: math.nan if value is None else value for key, value in record.items()} for record in records(run)]
    )


def setting(case: Case) -> str:
    """What a case is of, besides op, variant and dtype: 'N96-C64', 'N96-C64, layout=nhwc', 'N96-C64, world=2'."""
    world = f"world={case.world}" if case.world > 1 else ""
    return ", ".join(filter(None, [case.shape_text, case.choices_text.replace(",", ", "), world]))


Settings = dict[str, dict[str, int | Value]]


def settings_of(own: list[Line]) -> Settings:
    """The sizes and choices behind each setting, by name; the world too where it isn't 1 throughout."""
    several = any(line.case.world > 1 for line in own)
    return {
        setting(line.case): {name: value for name, value in line.case.values.items() if name != "world" or several}
        for line in own
    }
