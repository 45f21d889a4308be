"""What the rules judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.gate._cases import Broken
from harness.gate.records import CaseEvidence
from harness.model import Ceilings, Scenario


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was measured, and around it.

    base: what the user called it. ceilings: None where no floor needs them. broken: scenario files that only the base
    can load. shared: who else used the device before the first measurement; empty if nobody.
    """

    base: str
    scenarios: tuple[Scenario, ...]
    cases: tuple[CaseEvidence, ...]
    ceilings: Ceilings | None = None
    broken: tuple[Broken, ...] = ()
    shared: str = ""

    @property
    def by_id(self) -> Mapping[str, CaseEvidence]:
        """The cases by id."""
        return {found.case.id: found for found in self.cases}
