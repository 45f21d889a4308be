"""What the rules judge: the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.gate._cases import Broken
from harness.gate.records import CaseEvidence
from harness.model import Limits, Scenario


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was measured, and its circumstances.

    base: what the user called the base. limits: what the machine can do; None if no floor needs it. broken: scenario
    files that only the base can load. shared: who else used the device before the first measurement; empty if nobody
    did.
    """

    base: str
    scenarios: tuple[Scenario, ...]
    cases: tuple[CaseEvidence, ...]
    limits: Limits | None = None
    broken: tuple[Broken, ...] = ()
    shared: str = ""

    @property
    def by_id(self) -> Mapping[str, CaseEvidence]:
        """The cases by id."""
        return {found.case.id: found for found in self.cases}
