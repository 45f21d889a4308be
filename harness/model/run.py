"""A run as stored, and the difference of a case between two runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from harness.model.case import Case
from harness.model.limits import Limits
from harness.model.machine import Machine
from harness.model.measurement import Attachment, Measurement, Result
from harness.model.scenario import Scenario

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Header:
    """Everything about a run but its results: what `run.json` holds.

    plan: hash over the ids of the cases and their timing; empty where ids have changed since the run was stored. Each
    measurement says which code made it. sealed: whether each result was stored with a checksum, as this harness does.
    """

    name: str
    machine: Machine
    scenarios: tuple[Scenario, ...]
    command: tuple[str, ...]
    started: str
    plan: str
    jobs: int
    repeat: int = 1
    schema: int = SCHEMA
    finished: str | None = None
    limits: Limits | None = None
    git_revision: str = ""
    git_dirty: bool = False
    harness_version: str = ""
    sealed: bool = False

    def differs_from(self, other: Header) -> bool:
        """Whether the run was asked for other cases or another timing; other cases alone, where a hash is unknown."""
        if self.plan and other.plan:
            return self.plan != other.plan
        return [s.cases for s in self.scenarios] != [s.cases for s in other.scenarios]


@dataclass(frozen=True)
class Run:
    """A run as read from its folder. `losses` says what couldn't be read."""

    header: Header
    measurements: tuple[Measurement, ...]
    losses: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()

    def __hash__(self) -> int:
        # What is kept of a run is asked for often, and a hash of all of it would go over every sample.
        return hash((self.header.name, self.header.started, len(self.measurements)))

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """One result a case, in the order in which the cases were first measured."""
        by_id: dict[str, list[Measurement]] = defaultdict(list)
        for measurement in self.measurements:
            by_id[measurement.case.id].append(measurement)
        return tuple(Result(group[0].case, tuple(group)) for group in by_id.values())

    @property
    def limits(self) -> Limits | None:
        return self.header.limits


@dataclass(frozen=True, slots=True)
class Difference:
    """One case in two runs. `ratio` is the reference's time over the run's: above 1 the run is faster.

    low, high: 95% interval of the ratio. `verdict`: 'faster', 'slower', '~' (the intervals overlap), or
    'missing' where either run has no time for the case (`note` says which and why).
    """

    case: Case
    reference: float | None
    run: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Literal["faster", "slower", "~", "missing"]
    samples: int = 0
    note: str = ""
