"""Records of the gate: pairs of measurements, what was decided about each case, and how a gate run ended.

Records are frozen and hold SI units, as the records of harness/model do. A change is ln(time of the base / time now),
so a negative change is slower. `share` turns a change into a share of the base's speed (calls a second), which people
read.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from harness.errors import Exit
from harness.model import Case, Machine, Measurement, Scenario

SCHEMA = 2

Stage = Literal["screen", "confirm"]
Side = Literal["base", "now"]
Outcome = Literal["ok", "improved", "regressed", "inconclusive"]
Severity = Literal["failure", "undecided", "environment", "accepted", "note"]
GRAVITY: tuple[Severity, ...] = ("environment", "failure", "undecided", "accepted", "note")
"""Severities, the gravest first. accepted: a failure or an undecided finding that the user accepts with --accept."""


_MOST_CHANGE = 700.0
"""A bound of few pairs may be larger; its share would be too large for a float."""


def share(change: float) -> float:
    """A change as a share of the base's speed: -0.03 is 3% slower."""
    return math.expm1(min(change, _MOST_CHANGE))


def change(of_share: float) -> float:
    """The change that a share of the base's speed is: the inverse of `share`. A loss of 1% is a share of -0.01."""
    return math.log1p(of_share)


@dataclass(frozen=True, slots=True)
class Pair:
    """A case measured by two fresh processes, one after the other.

    base, now: seconds a call, the median of each process. first: the side that was measured first.
    """

    base: float
    now: float
    first: Side
    stage: Stage

    @property
    def change(self) -> float:
        """The change as a logarithm: ln(time of the base / time now)."""
        return math.log(self.base / self.now)


NOISE_MOST = 2.0
"""How many times the margin that was asked for the noise of a case may be, at most."""


@dataclass(frozen=True, slots=True)
class Margin:
    """The loss that still passes, as a share of the base's speed, and the loss from which on a case fails.

    noise: three standard deviations of the offsets of identical code, calibrated on this machine; None if they aren't
    known. A case whose noise is larger than `most` can't pass, since noise could hide a loss that nobody has accepted.
    It can still fail. allowed: what the offsets of identical code stay below in all cases of the run, but for a small
    chance; the noise if None. chance: that the offset of this case alone makes it fail. waived: the largest loss that a
    waiver lets pass; 0 without one.
    """

    asked: float
    noise: float | None = None
    allowed: float | None = None
    chance: float = 0.0
    waived: float = 0.0

    @property
    def value(self) -> float:
        """The loss that passes: what was asked for, or what offsets need, but no more than `most` if they do."""
        return max(self.waived, self.unwaived)

    @property
    def unwaived(self) -> float:
        """The loss that passes without the waiver."""
        return self._largest if self.too_noisy else max(self.asked, min(self._largest, self.most))

    @property
    def failing(self) -> float:
        """The loss from which on the case fails. A loss between `value` and this one is undecided."""
        return max(self.waived, self._largest)

    @property
    def _largest(self) -> float:
        allowed = self.noise if self.allowed is None else self.allowed
        return max(self.asked, allowed or 0.0)

    @property
    def most(self) -> float:
        """The largest noise with which the case can pass."""
        return NOISE_MOST * self.asked

    @property
    def too_noisy(self) -> bool:
        """Whether the noise is so large that the case can't pass."""
        return max(self.asked, self.noise or 0.0) > self.most

    @property
    def limit(self) -> float:
        """The change at which the loss is exactly the margin."""
        return math.log1p(-self.value)

    @property
    def fail_limit(self) -> float:
        """The change at which the loss is the one from which on the case fails."""
        return math.log1p(-self.failing)


TELL_MOST = 640
"""The largest number of pairs that `Decision.pairs_to_tell` gives."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the pairs of one case say. estimate, low, high: mean of the pairs and its one-sided bounds, as changes.

    The three are from the stage that decided. low has the level for passing (5%): the outcome is 'ok' or 'improved'
    where low lies above the margin's limit. high has the level that Holm's method compared `p` with (5% in the screen,
    where nothing can fail): the outcome is 'regressed' where high lies below the limit for failing. So low and high are
    not an interval of one confidence. p: of the confirming test that the loss is too small to fail, before Holm; None
    if the screen was enough. pairs_to_tell: how many pairs would most likely decide an inconclusive case; TELL_MOST
    means that many or more, None that no number of pairs would, since the noise hides such a loss.
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

    A side has none if it doesn't know the case. control: whether the case is a library's copy, which no change of
    ours can slow down. decision: None where there are too few pairs.
    """

    case: Case
    scenario: str
    base: tuple[Measurement, ...]
    now: tuple[Measurement, ...]
    pairs: tuple[Pair, ...]
    margin: Margin
    control: bool = False
    decision: Decision | None = None

    @property
    def too_noisy(self) -> bool:
        """Whether the case is undecided since its noise is too large, however many pairs it has."""
        return self.margin.too_noisy and self.decision is not None and self.decision.outcome == "inconclusive"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found: `severity` decides the exit code, `case` is None where it is about the whole run.

    rests_on: the sides whose times the finding rests on. A finding that rests on times is only as good as the machine
    was while that side was measured; a finding that rests on no times holds on any machine.
    """

    rule: str
    severity: Severity
    message: str
    advice: str = ""
    case: Case | None = None
    rests_on: tuple[Side, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiver:
    """Cases that may lose more than the margin for a while. cases: patterns of ids; place: file and line.

    largest_loss: as a share of the base's speed. until: the last day, as YYYY-MM-DD in UTC. new: whether the base
    doesn't allow as much, None where nobody knows; the file doesn't say it, so waivers that differ in it are equal.
    """

    cases: tuple[str, ...]
    largest_loss: float
    reason: str
    owner: str
    until: str
    place: str
    new: bool | None = field(default=None, compare=False)

    def covers(self, case: str, today: str) -> bool:
        """Whether the waiver is about the case with this id, on a day on which it holds."""
        return today <= self.until and self.names(case)

    def names(self, case: str) -> bool:
        """Whether a pattern of the waiver fits the id of a case."""
        return any(fnmatchcase(case, pattern) for pattern in self.cases)


@dataclass(frozen=True, slots=True)
class Revision:
    """One side of the comparison. label: what the user called it; digest: hash over kernels, ops and harness files.

    repository: the folder of the git repository whose revision it is; empty for a stored run.
    """

    label: str
    revision: str
    dirty: bool
    digest: str
    repository: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the base's reference, check and inputs say of a case of the working tree.

    wrong: what is wrong with its outputs. unable: why the base can't judge them. One of the two is empty.
    """

    case: Case
    wrong: str = ""
    unable: str = ""


@dataclass(frozen=True, slots=True)
class UsedCode:
    """Which files the processes of both sides used, for all cases that are measured.

    base, now: path and SHA-256 of each file, sorted. Paths in a side's tree begin at its top, paths of what was made
    for it at '{made}'; other paths are full. shared: files that both sides used, in the repository or outside of both
    trees, so that they weren't compared. changed: files that differ between base and working tree, and that a side used
    or asked about. unused: the others that differ. software: those by which other software would be installed.
    versions: the driver and packages of which the sides ran with other versions. complete: whether all files are known,
    since no case failed, and no process that a side started, nor native code, may tell the sides apart by a file that
    it only asked about. unmatched: files that the working tree used and git ignores, and that the base doesn't have.
    outside: files outside of the repository that the working tree found by its own place, where the base found none.
    filtered: files with other contents on the two sides, though git calls them the same. older: files that git ignores,
    that the working tree used, and that are older than a changed source which no side opened.
    """

    base: tuple[tuple[str, str], ...] = ()
    now: tuple[tuple[str, str], ...] = ()
    shared: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    software: tuple[str, ...] = ()
    complete: bool = False
    versions: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    filtered: tuple[str, ...] = ()
    older: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, str]:
        """The SHA-256 over all files of the base, and of the working tree."""
        return tuple(hashlib.sha256(repr(files).encode()).hexdigest() for files in (self.base, self.now))  # type: ignore[return-value]

    @property
    def same(self) -> bool:
        """Whether both sides used the same code, each its own, with the same software.

        A file that has another mode now, or is only asked about, is changed too, though no digest says so.
        """
        alone = not (self.shared or self.versions or self.changed or self.older)
        return self.complete and bool(self.now) and alone and self.base == self.now


@dataclass(frozen=True, slots=True)
class GateRun:
    """A gate run as `gate.json` holds it. seconds: wall-clock, from the start of the command.

    refused: what differs between two stored runs; empty if they may be compared, or with --advisory. accept: the rules
    that --accept names. used: the files that both sides used; None for stored runs. looks: how often the confirmation
    looked. waivers: all of the file, also those that have expired. continues: when the run began from whose pairs this
    one goes on; empty if it measured all pairs itself.
    """

    mode: Literal["paired", "stored"]
    base: Revision
    now: Revision
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
    accept: tuple[str, ...] = ()
    schema: int = SCHEMA
    used: UsedCode | None = None
    looks: int = 0
    waivers: tuple[Waiver, ...] = ()
    continues: str = ""

    @property
    def chance(self) -> float:
        """The chance that identical code fails by its offsets, in any of the cases that were decided, at most."""
        return min(1.0, math.fsum(found.margin.chance for found in self.cases if found.decision and not found.control))

    @property
    def exit(self) -> Exit:
        """The exit code. ENVIRONMENT comes first: on a machine without valid numbers a loss proves nothing.

        With --advisory the code is always OK.
        """
        severities = {finding.severity for finding in self.findings}
        if self.advisory:
            return Exit.OK
        if self.refused or "environment" in severities:
            return Exit.ENVIRONMENT
        if "failure" in severities:
            return Exit.GATE_FAILED
        return Exit.UNDECIDED if "undecided" in severities else Exit.OK
