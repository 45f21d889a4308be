"""About how long a run takes: everything from the first process to the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness import devices, limits
from harness.metrics import Subject
from harness.model import Job, Limits, Measurement
from harness.ops import Op
from harness.scenario import Plan

# Measured on two cores without other work, and over the 2835 cases of the stored runs of an H200.
_START = 3.0  # seconds until a process has loaded torch
_BESIDE = 0.25  # seconds of a case besides sampling: compiling our kernels, checking, setting up, calls one by one
_STEP = 11.0  # seconds of a case besides sampling whose call is a whole step: 211 cases of the stored runs of an H200
_CALLS = 6  # of a case at least, however long they take; what is done once besides is left out
_COMPILE = 6.5  # seconds until torch.compile has made its first kernel in a process
_PROBE = 1.5  # seconds for a probe of limits that are known, and for streams at the end of a run
_LIMITS = 15.0  # seconds for measuring all streams, unless the device may take less
_REPORT = 3.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the parts of a run.

    start: of a process. limits: what the machine can do. each: a measurement, with its share of what is done once for
    each process. after: streams once more, and the report. count: measurements.
    """

    start: float
    limits: float
    each: float
    after: float
    count: int

    @classmethod
    def make(cls, plan: Plan, kind: str, repeat: int, fresh: bool = False) -> Estimate:
        """The estimate of a plan on this machine, measured by `repeat` processes one after the other."""
        device = devices.kinds()[kind]
        found = None if device.missing() else limits.recall(device.machine())
        known = found is not None and not fresh
        whole = {name for name, op in plan.ops.items() if op.timer == "steady"}
        cases = sum(
            max(job.timing.max_time, _CALLS * (at_best(job, plan.ops.get(job.case.op), found) or 0.0))
            + (_STEP if job.case.op in whole else _BESIDE)
            for job in plan.jobs
        )
        once = _START + _COMPILE * len(plan.ops)
        return cls(
            start=_START,
            limits=_PROBE if known else min(_LIMITS, device.stream_seconds),
            each=(cases + once) / max(1, len(plan.jobs)),
            after=_START + _PROBE + _REPORT,
            count=repeat * len(plan.jobs),
        )

    @property
    def before(self) -> float:
        """Seconds until the first case begins."""
        return self.start + self.limits

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.of(self.count)

    @staticmethod
    def of_search(rounds: Iterable[tuple[int, float]]) -> float:
        """Seconds of a search, at most: of each round the plans that are timed, and the seconds that each may take."""
        return sum(_START + _REPORT + count * (seconds + _BESIDE) for count, seconds in rounds)

    def of(self, count: int) -> float:
        """Seconds if only `count` measurements are left to do."""
        return self.before + count * self.each + self.after


def at_best(job: Job, op: Op | None, known: Limits | None) -> float | None:
    """Seconds that a call of a case takes on this machine at best; None where the op or the limits aren't known."""
    if op is None or known is None:
        return None
    case, variant = job.case, op.variants[job.case.variant]
    work, timer = op.work_done_by(variant, case.values, case.dtype), variant.timer or op.timer
    return Subject.of(Measurement(case, "skipped", work=work, timer=timer), known).best
