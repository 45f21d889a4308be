"""What the gate passes on: pairs of measurements, what was decided about each case, and what became of a gate run.

Frozen records in SI units, as in model.py; changes are natural logarithms, ln(bandwidth now / bandwidth base): negative
is slower. `share` turns one into what people read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from harness.errors import Exit
from harness.model import Case, Machine, Measurement, Scenario

SCHEMA = 1

Stage = Literal["screen", "confirm"]
Side = Literal["base", "now"]
Outcome = Literal["ok", "improved", "regressed", "inconclusive"]
Severity = Literal["failure", "undecided", "environment", "note"]
GRAVITY: tuple[Severity, ...] = ("environment", "failure", "undecided", "note")
"""The gravest first."""


def share(change: float) -> float:
    """A change as a share of the base's bandwidth: -0.03 is 3% slower."""
    return math.expm1(change)


def change(of_share: float) -> float:
    """The inverse of `share`: what a loss of 1%, -0.01, is as a change."""
    return math.log1p(of_share)


@dataclass(frozen=True, slots=True)
class Pair:
    """A case measured by two fresh processes, one after the other: seconds a call, each the process's median.

    first: which of them went first, as drawn. work_ratio: essential bytes now over those of the base, 1 unless the op
    was given another contract.
    """

    base: float
    now: float
    first: Side
    stage: Stage
    work_ratio: float = 1.0

    @property
    def change(self) -> float:
        """ln(bandwidth now / bandwidth base)."""
        return math.log(self.base / self.now * self.work_ratio)


@dataclass(frozen=True, slots=True)
class Margin:
    """The loss, a share of the bandwidth, that still passes: the larger of what was asked for and the noise floor.

    floor: the largest change that a block of identical code has shown for this case on this machine; None if it was
    never calibrated.
    """

    asked: float
    floor: float | None = None

    @property
    def value(self) -> float:
        return max(self.asked, self.floor or 0.0)

    @property
    def limit(self) -> float:
        """The change at which a loss is exactly the margin."""
        return math.log1p(-self.value)


TELL_MOST = 200
"""Numbers of pairs that would tell end here."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the pairs of one case say. estimate, low, high: paired mean and its one-sided bounds, as changes.

    They are of the stage that decided. low is at the level for passing (5%): the outcome is 'ok' or 'improved' where it
    lies above the margin's limit. high is at the level that Holm's method held `p` against (5% where nothing could
    fail, in the screen): the outcome is 'regressed' where it lies below the limit. So the two aren't an interval of
    one confidence. p: of the confirming test that the loss is no more than the margin, before Holm; None if the screen
    was enough. pairs_to_tell: how many would most likely tell, where it is inconclusive; TELL_MOST means that or more.
    """

    outcome: Outcome
    stage: Stage
    estimate: float
    low: float
    high: float
    pairs: int
    p: float | None = None
    pairs_to_tell: int | None = None


@dataclass(frozen=True, slots=True)
class CaseEvidence:
    """Everything that was measured about one case. base, now: one measurement a process, in the order of the pairs.

    A side has none where it doesn't know the case. control: a library's copy, which no change of ours can slow down.
    decision: None where there are too few pairs.
    """

    case: Case
    scenario: str
    base: tuple[Measurement, ...]
    now: tuple[Measurement, ...]
    pairs: tuple[Pair, ...]
    margin: Margin
    control: bool = False
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule has to say: `severity` decides the exit code, `case` is None where it is about the whole run."""

    rule: str
    severity: Severity
    message: str
    advice: str = ""
    case: Case | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """One side of the comparison. label: what the user called it; digest: hash over kernels, ops and harness files."""

    label: str
    revision: str
    dirty: bool
    digest: str


@dataclass(frozen=True, slots=True)
class GateRun:
    """A gate run as `gate.json` holds it. seconds: wall-clock, from the command's start.

    refused: what differs between two stored runs; empty if they may be compared, or with --advisory.
    """

    mode: Literal["paired", "stored"]
    base: Code
    now: Code
    machine: Machine
    scenarios: tuple[Scenario, ...]
    cases: tuple[CaseEvidence, ...]
    findings: tuple[Finding, ...]
    seed: int | None
    alpha: float
    started: str
    seconds: float
    command: tuple[str, ...] = ()
    advisory: bool = False
    refused: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def exit(self) -> Exit:
        """The environment speaks first: where it can't give valid numbers, a loss isn't one. --advisory never fails."""
        severities = {finding.severity for finding in self.findings}
        if self.advisory:
            return Exit.OK
        if self.refused or "environment" in severities:
            return Exit.ENVIRONMENT
        if "failure" in severities:
            return Exit.GATE_FAILED
        return Exit.UNDECIDED if "undecided" in severities else Exit.OK
