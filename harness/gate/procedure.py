"""Screen and confirm: which pairs to measure next, and when a case is decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.gate import deciding
from harness.gate.case_lists import Cases, is_control, scenario_of
from harness.gate.noise_store import Noise, timer
from harness.gate.observer import GateObserver
from harness.gate.pairing import PairMeasurer
from harness.gate.records import CaseEvidence, Decision, Margin
from harness.model import Job


@dataclass(slots=True)
class Procedure:
    """A few pairs of every case, then more of the cases still open. asked: the loss that passes, as a share."""

    pairs: PairMeasurer
    cases: Cases
    asked: float
    noise: Noise
    observer: GateObserver
    margins: dict[str, Margin] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)

    def carry_out(self) -> tuple[CaseEvidence, ...]:
        """Measure and decide. Returns the evidence case by case, in the order of the plan."""
        known = {job.case.id for job in self.cases.jobs["base"]}
        shared = [job for job in self.cases.jobs["now"] if job.case.id in known]
        going = self._screen([job.case.id for job in shared])
        self._confirm(shared, going)
        return tuple(self._evidence())

    def _screen(self, keys: Sequence[str]) -> list[str]:
        """Screen all cases. Returns the cases that the screen leaves open."""
        if any(self.cases.jobs.values()):
            self.pairs.measure("screen", deciding.SCREEN_PAIRS, self.cases.jobs)
        self.margins = {key: self._margin(key) for key in keys}
        changes = self.pairs.changes(keys, "screen")
        self.decisions = {key: made for key, made in deciding.screened(changes, self.margins).items() if made}
        enough = [key for key in keys if len(changes[key]) >= deciding.LEAST_PAIRS]
        going = [key for key in enough if key not in self.decisions]
        self.observer.settled(deciding.SCREEN_PAIRS, self.decisions, going)
        return going

    def _confirm(self, shared: Sequence[Job], going: Sequence[str]) -> None:
        """Measure suspects again, together with the controls, which show whether the machine changed."""
        controls = [job.case.id for job in shared if self._is_control(job) and job.case.id in self.margins]
        suspects = [key for key in going if key not in controls]
        if not suspects:
            # Only controls are open. A control can't fail, so more pairs of it would change nothing.
            self.decisions |= deciding.stored(self.pairs.changes(going, "screen"), self.margins)
            return
        family = len(suspects)
        for look in range(1, deciding.LOOKS + 1):
            jobs = [job for job in shared if job.case.id in (*suspects, *controls)]
            self.pairs.measure("confirm", deciding.CONFIRM_PAIRS, {"base": jobs, "now": jobs})
            found = deciding.looked(self.pairs.changes(suspects, "confirm"), self.margins, look, family)
            # A control that slowed down beside regressed suspects keeps that decision: later pairs don't undo it.
            quiet = [key for key in controls if not self._regressed(key)]
            watched = deciding.looked(self.pairs.changes(quiet, "confirm"), self.margins, look, len(quiet))
            self.decisions |= found | watched
            family -= sum(decision.outcome == "regressed" for decision in found.values())
            suspects = [key for key, decision in found.items() if decision.outcome == "inconclusive"]
            last = look == deciding.LOOKS
            self.observer.settled(look * deciding.CONFIRM_PAIRS, found, [] if last else suspects)
            if not suspects:
                break

    def _is_control(self, job: Job) -> bool:
        return is_control(job.case, self.cases.scenarios)

    def _regressed(self, key: str) -> bool:
        return key in self.decisions and self.decisions[key].outcome == "regressed"

    def _margin(self, key: str) -> Margin:
        return self.noise.margin(key, timer(self.pairs.measurements["now"][key]), self.asked)

    def _evidence(self) -> Iterator[CaseEvidence]:
        scenarios = scenario_of(self.cases.scenarios)
        measured = self.pairs.measurements
        for job in self.cases.all:
            key = job.case.id
            yield CaseEvidence(
                case=job.case,
                scenario=scenarios.get(key, ""),
                base=tuple(measured["base"].get(key, ())),
                now=tuple(measured["now"].get(key, ())),
                pairs=tuple(self.pairs.pairs.get(key, ())),
                margin=self.margins.get(key, Margin(self.asked)),
                control=self._is_control(job),
                decision=self.decisions.get(key),
            )
