"""Screen and confirm: which pairs to measure next, and when a case is decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import UsageError
from harness.gate import deciding, looks
from harness.gate.case_lists import Cases, is_control, scenario_of
from harness.gate.noise_store import Noise, timer
from harness.gate.observer import GateObserver
from harness.gate.pairing import PairMeasurer
from harness.gate.records import CaseEvidence, Decision, GateRun, Margin
from harness.model import Job


@dataclass(slots=True)
class Procedure:
    """A few pairs of every case, then more of the cases still open. asked: the loss that passes, as a share.

    most: looks, at most. waived: the largest loss that a waiver lets pass, by case id. made: looks that were made.
    """

    pairs: PairMeasurer
    cases: Cases
    asked: float
    noise: Noise
    observer: GateObserver
    most: int = field(default_factory=lambda: looks.LOOKS)
    waived: Mapping[str, float] = field(default_factory=dict)
    margins: dict[str, Margin] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    made: int = 0

    def carry_out(self) -> tuple[CaseEvidence, ...]:
        """Measure and decide. Returns the evidence case by case, in the order of the plan."""
        shared = self._shared()
        going = self._screen([job.case.id for job in shared])
        controls = self._controls(shared)
        suspects = [key for key in going if key not in controls]
        if suspects:
            self._confirm(shared, suspects, len(suspects))
        else:
            # Only controls are open. A control can't fail, so more pairs of it would change nothing.
            self.decisions |= deciding.stored(self.pairs.changes(going, "screen"), self.margins)
        return tuple(self._evidence())

    def go_on(self, earlier: GateRun) -> tuple[CaseEvidence, ...]:
        """Add pairs to the undecided cases of an earlier run of the same codes, from the look after its last one.

        Margins stay as they were. Raises UsageError if no more pairs can decide a case.
        """
        cases = {found.case.id: found for found in earlier.cases}
        self.margins = {key: found.margin for key, found in cases.items()}
        self.decisions = {key: found.decision for key, found in cases.items() if found.decision}
        self.pairs.take_up(earlier.cases)
        self.made = earlier.looks
        confirmed = [
            key for key, found in cases.items()
            if found.decision and found.decision.stage == "confirm" and not found.control
        ]  # fmt: skip
        suspects = [key for key in confirmed if self.decisions[key].pairs_to_tell is not None]
        if suspects and self.most <= self.made < looks.MOST_LOOKS:
            found = f"--pairs {looks.pairs_at(self.most)}: this run has {looks.pairs_at(self.made)} pairs to confirm"
            raise UsageError(found, f"ask for more: --pairs {looks.pairs_at(self.made + 1)}")
        if not suspects or self.made >= looks.MOST_LOOKS:
            advice = "read its findings; measure anew without --resume, or with another --margin"
            raise UsageError("--resume: no case of this run is undecided that more pairs could decide", advice)
        family = sum(not self._regressed(key) for key in confirmed)
        self._confirm(self._shared(), suspects, family)
        return tuple(self._evidence())

    def _shared(self) -> list[Job]:
        known = {job.case.id for job in self.cases.jobs["base"]}
        return [job for job in self.cases.jobs["now"] if job.case.id in known]

    def _screen(self, keys: Sequence[str]) -> list[str]:
        """Screen all cases. Returns the cases that the screen leaves open."""
        if any(self.cases.jobs.values()):
            self.pairs.measure("screen", deciding.SCREEN_PAIRS, self.cases.jobs)
        # A control never fails, so its offset can't make the run fail.
        family = len(keys) - len(self._controls([job for job in self._shared() if job.case.id in keys]))
        self.margins = {key: self._margin(key, family) for key in keys}
        changes = self.pairs.changes(keys, "screen")
        self.decisions = {key: made for key, made in deciding.screened(changes, self.margins).items() if made}
        enough = [key for key in keys if len(changes[key]) >= deciding.LEAST_PAIRS]
        going = [key for key in enough if key not in self.decisions]
        self.observer.settled(deciding.SCREEN_PAIRS, self.decisions, going)
        return going

    def _controls(self, shared: Sequence[Job]) -> list[str]:
        return [job.case.id for job in shared if self._is_control(job)]

    def _confirm(self, shared: Sequence[Job], suspects: Sequence[str], family: int) -> None:
        """Measure suspects again, together with the controls, which show whether the machine changed.

        family: how many cases Holm's method counts.
        """
        controls = [key for key in self._controls(shared) if key in self.margins]
        for look in range(self.made + 1, self.most + 1):
            jobs = [job for job in shared if job.case.id in (*suspects, *controls)]
            more = looks.pairs_at(look) - (looks.pairs_at(look - 1) if look > 1 else 0)
            self.pairs.measure("confirm", more, {"base": jobs, "now": jobs})
            found = deciding.looked(self.pairs.changes(suspects, "confirm"), self.margins, look, family)
            # A control that slowed down beside regressed suspects keeps that decision: later pairs don't undo it.
            quiet = [key for key in controls if not self._regressed(key)]
            watched = deciding.looked(self.pairs.changes(quiet, "confirm"), self.margins, look, len(quiet))
            self.decisions |= found | watched
            self.made = look
            family -= sum(decision.outcome == "regressed" for decision in found.values())
            suspects = [key for key, decision in found.items() if decision.outcome == "inconclusive"]
            self.observer.settled(looks.pairs_at(look), found, [] if look == self.most else suspects)
            if not suspects:
                break

    def _is_control(self, job: Job) -> bool:
        return is_control(job.case, self.cases.scenarios)

    def _regressed(self, key: str) -> bool:
        return key in self.decisions and self.decisions[key].outcome == "regressed"

    def _margin(self, key: str, family: int) -> Margin:
        timed = timer(self.pairs.measurements["now"][key])
        return self.noise.margin(key, timed, self.asked, family, self.waived.get(key, 0.0))

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
