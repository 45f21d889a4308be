"""What the rules judge: the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.gate.case_lists import Broken, role_of
from harness.gate.records import CaseEvidence, Judged, UsedCode, Waiver
from harness.model import LIBRARY_ROLES, Case, Limits, Scenario


@dataclass(frozen=True)
class Evidence:
    """Everything that was measured, and its circumstances.

    base: what the user called the base. limits: what the machine can do; None if no floor needs it. broken: scenario
    files that only the base can load. shared: who else used the device before the first measurement; empty if nobody
    did. asked: the scenarios of the working tree with all their cases, also the cases that --only leaves out. before:
    the scenarios of the base, as its own revision of the files has them. untold: why the base's scenarios aren't all
    known. used: the files that both sides used; None for stored runs. same: whether nothing was measured, since both
    sides have the same code. measuring: why the times of both sides can't be compared, since the code that measures
    changed; empty if they can. judged: cases of the working tree that the base finds wrong, or can't judge. laxer: what
    is checked less strictly than by the base, one sentence each. untimed: what lets work escape the time now, one
    sentence each. waivers: all of the file. unsure: why nobody knows which of them are new since the base; empty if
    that is known. today: as YYYY-MM-DD, UTC. edited: files that somebody has edited since the gate began.
    """

    base: str
    scenarios: tuple[Scenario, ...]
    cases: tuple[CaseEvidence, ...]
    limits: Limits | None = None
    broken: tuple[Broken, ...] = ()
    shared: str = ""
    asked: tuple[Scenario, ...] = ()
    before: tuple[Scenario, ...] = ()
    untold: tuple[str, ...] = ()
    used: UsedCode | None = None
    same: bool = False
    measuring: str = ""
    judged: tuple[Judged, ...] = ()
    laxer: tuple[str, ...] = ()
    untimed: tuple[str, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    unsure: str = ""
    today: str = ""
    edited: tuple[str, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, CaseEvidence]:
        """The cases by id."""
        return {found.case.id: found for found in self.cases}

    @cached_property
    def known(self) -> frozenset[str]:
        """Ids of all cases that the working tree's scenarios have, whether they were measured or not."""
        return frozenset(key for scenario in self.asked for key in scenario.cases)

    def is_ours(self, case: Case) -> bool:
        """Whether a case is of code that may change: neither a library's variant nor a control."""
        return role_of(case.op, case.variant, self._roles) not in LIBRARY_ROLES

    @property
    def _roles(self) -> Sequence[Scenario]:
        return (*self.scenarios, *self.asked, *self.before)
