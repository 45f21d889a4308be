"""A session -> a measurement: warm the case up, sample it, judge the samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from harness import intact, recheck, stats, units
from harness.clocks import Clocks, left_behind
from harness.devices import Batch, Device
from harness.model import Conditions, Job, Measurement, Status, Timing
from harness.ops import Op
from harness.ranks import ALONE, Group
from harness.rotation import Renewal
from harness.session import EndedError, Session

_FEWEST_SAMPLES = 20
_FEWEST_FOR_INTERVAL = 6  # below, no pair of samples covers the median with 95%
_SAMPLES_A_ROUND = 10  # queued together; fewer where a single one takes long
_BATCH_SECONDS = 5e-3
_WARM_SECONDS = 0.05
_CALL_ROUNDS = 5
_LONGEST_ADVISED = 60.0  # seconds of sampling that a user may be willing to wait for
_RECHECK_SHARE = 0.05  # of a case's time until then, which the check of the timed calls may take
_SUSPICIONS = 9  # in a row, from which on calls are taken to tell the check from the timing
_FEW = 3  # samples beside a suspicion
_LONGER = 1.5  # times as long as usual a call must take, to be told from noise
_OF_A_LOOP = 5e-7  # seconds that a loop in Python takes beside each call
_SHORT = 100e-6  # seconds of a call below which the cost of timing it alone shows

_Samples = list[float]


def measure(  # noqa: PLR0913 - what a question to a process holds
    job: Job, op: Op, device: Device, group: Group | None = None, process: int = 0, *, timed: bool = True
) -> Measurement:
    """Check and time one case on `device`; only check it unless `timed`, then also on unaligned tensors.

    A case that the variant can't run, too little memory and a wrong result become the measurement's status, on every
    rank of a group. So does an error of another rank, as 'crashed'. An error of this process is raised: after it the
    device may be unusable.
    """
    session = Session(job.case, op, device, group or ALONE)
    status: Status = "ok"
    found: dict[str, Any]
    try:
        with intact.settings_kept(), session:
            ready(session, unaligned=not timed)
            found = _timed(session, job.timing) if timed else {"kernels": session.kernels}
            if wrong := session.group.verdict(None if timed else intact.replaced()):
                raise EndedError("wrong", wrong)
    except EndedError as ended:
        status, found = ended.status, {"error": ended.text}
    return made(session, status, found, process)


def made(session: Session, status: Status, found: Mapping[str, Any], process: int = 0) -> Measurement:
    """The measurement of a session that is over. found: how the case was timed, or what was wrong."""
    case, op = session.case, session.op
    values, dtype = case.values, case.dtype
    work, done = op.work_of(values, dtype), op.work_done_by(session.variant, values, dtype)
    return Measurement(
        case,
        status,
        work=work,
        arithmetic=done.flops if done != work else (),
        traffic=op.traffic_of(session.variant, values, dtype),
        facts=session.facts,
        warnings=tuple(session.warnings),
        process=process,
        seed=session.seed,
        phases=tuple(session.phases),
        **found,
    )


def ready(session: Session, *, unaligned: bool = False) -> None:
    """Prepare the case and check it, on unaligned tensors too if asked for. Raises EndedError if it is wrong."""
    intact.watch(f"op '{session.op.name}'", session.op)
    session.prepare()
    if wrong := session.check() or (session.check_unaligned() if unaligned else None):
        raise EndedError("wrong", wrong)
    if wrong := session.extremes():
        # A comparison that was replaced may be why.
        raise EndedError("wrong", session.group.verdict(intact.replaced()) or wrong)


def _timed(session: Session, timing: Timing) -> dict[str, Any]:
    """The fields of a measurement that say how the case was timed."""
    sampler = Sampler(session, timing)
    with session.phase("sample"), session.device.watched():
        before = session.device.conditions()
        stopped = sampler.sample()
        after = session.device.conditions()
    return sampler.finish(before, after, stopped)


class Sampler:
    """A checked case whose calls are timed: all at once, or round by round beside other cases.

    samples: seconds of a call, so far. seconds: what it took to take them.
    """

    def __init__(self, session: Session, timing: Timing) -> None:
        """Make the sets of buffers, and warm the calls up."""
        self._session, self._timing = session, timing
        self._rotation = session.rotation()
        with session.phase("warm"):
            self._batch = _warm_batch(session, self._rotation.calls)
        self._clocks = Clocks(session.device)
        self._renewal = Renewal(session.group, session.device, self._rotation)
        self.samples: _Samples = []
        self.seconds = 0.0

    def sample(self) -> str:
        """Take samples until their median has the precision asked for ('interval') or time is up ('time').

        Steady samples are taken all at once, since between two rounds the device would become idle.
        """
        group, timing, batch = self._session.group, self._timing, self._batch
        if batch.timer == "steady":
            self.round(max(_FEWEST_FOR_INTERVAL, int(group.agree(timing.max_time / batch.seconds))))
            return "interval" if stats.relative_width(self.samples) <= timing.precision else "time"
        a_round = max(1, min(_SAMPLES_A_ROUND, int(group.agree(timing.max_time / batch.seconds / 4))))
        deadline = time.monotonic() + timing.max_time
        while True:
            self.round(a_round)
            if len(self.samples) >= _FEWEST_SAMPLES and stats.relative_width(self.samples) <= timing.precision:
                return "interval"
            if len(self.samples) >= _FEWEST_FOR_INTERVAL and group.agree(time.monotonic() >= deadline):
                return "time"

    def round(self, count: int) -> _Samples:
        """Take so many samples, and give them. Sets have new inputs in each round, as far as the time allows that."""
        begin = perf_counter()
        self._renewal.due()
        self._session.group.barrier()
        found = self._session.group.slowest(self._clocks.run(self._batch, count))
        self.samples += found
        self.seconds += perf_counter() - begin
        return found

    def finish(self, before: Conditions, after: Conditions, stopped: str) -> dict[str, Any]:
        """Check the calls that were timed, and judge the samples. Gives fields of a measurement.

        before, after: what the device was like around the samples. Raises EndedError if a call is wrong.
        """
        session, batch, timing, calls = self._session, self._batch, self._timing, self._rotation.calls
        with session.phase("calls"):
            lowered = session.group.exchange(sorted({*before.reasons, *after.reasons}))
            # Each rank may have opened each device.
            others = max(session.group.exchange(max(before.others, after.others))) - session.group.size + 1
            # Calls on little data have many sets of buffers. Where calls are slow, a pass over all would take minutes.
            most = session.group.agree(timing.max_time * batch.calls / max(batch.seconds, 1e-9))
            # Launches that note no outputs: what a graph returned at its capture is compared later.
            launches = [partial(call.launch, call.tensors) for call in calls[: max(1, int(most))]]
            call_samples, left = _call_samples(session, launches, timing.max_time)
        may_leave = bool(session.op.works_ahead)
        # Functions first: samples and clocks may be what a replaced function made of them.
        wrong = intact.replaced() or self._clocks.complaint(may_leave=may_leave)
        if not wrong and not may_leave:
            wrong = _left_behind(session, left, self.samples)
        if wrong := session.group.verdict(wrong):
            raise EndedError("wrong", wrong)
        seconds = _RECHECK_SHARE * sum(seconds for _, seconds in session.phases)
        if wrong := session.recheck(self._rotation, batch, seconds) or self._pretended():
            raise EndedError("wrong", wrong)
        session.report()
        _judge_samples(session, self.samples, timing)
        _judge_conditions(session, lowered, others)
        _judge_timer(session, self.samples, batch)
        return {
            "samples": tuple(self.samples),
            "call_samples": tuple(call_samples),
            "timer": batch.timer,
            "stopped": stopped,
            "batch": batch.calls,
            "sets": len(calls),
            "before": before,
            "after": after,
            "kernels": session.kernels,
        }

    def _pretended(self) -> str | None:
        """A complaint if calls take longer where they are checked than where they are timed.

        Code that looks who calls it may do the work in the check alone. Where calls take longer than the samples say
        wherever they are made, the samples are taken anew: the machine has other work now, or the calls waited for the
        samples to end. Nothing is told of a graph, in which no code of the host runs, and of several ranks.
        """
        session, batch = self._session, self._batch
        if batch.replay or session.group.size > 1 or not (session.op.inputs or session.op.outputs):
            return None
        for _ in range(_SUSPICIONS):
            checked, usual = recheck.pace(self._rotation, batch, session.device), statistics.median(self.samples)
            if not _is_longer(checked, usual):
                return None
            if _is_longer(statistics.median(self._clocks.run(batch, _FEW)), usual):
                self.samples.clear()
                self.sample()
        return (
            f"calls take {units.seconds(checked)} where they are checked, {units.seconds(usual)} in the samples: they "
            "do less work where they are timed"
        )


def _is_longer(checked: float, usual: float) -> bool:
    """Whether a call took surely longer than it usually does."""
    return checked > _LONGER * usual and checked - usual > _OF_A_LOOP


def _warm_batch(session: Session, calls: Sequence[Callable[[], object]]) -> Batch:
    batch = session.device.batch(
        calls, timer=session.timer, keep=len(calls), seconds=_BATCH_SECONDS, group=session.group
    )
    deadline = time.monotonic() + _WARM_SECONDS
    while session.group.agree(time.monotonic() < deadline):
        batch.run(1)
    return batch


def _call_samples(
    session: Session, calls: Sequence[Callable[[], object]], max_time: float
) -> tuple[_Samples, list[tuple[float, int]]]:
    """Seconds per call that a host loop sees, from the first call's issue to the last one's end; and what it leaves.

    The second is, for each loop, the seconds from the last call's issue to the end of all work, and the loop's calls.
    """
    group = session.group
    samples: list[float] = []
    left: list[tuple[float, int]] = []
    rounds = 1
    deadline = time.monotonic() + max_time
    while not samples or (len(samples) < _CALL_ROUNDS and group.agree(time.monotonic() < deadline)):
        start = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                call()
        issued = perf_counter()
        session.device.synchronize()
        after = perf_counter() - issued
        elapsed = time.perf_counter() - start
        if group.agree(elapsed >= _BATCH_SECONDS):
            samples.append(elapsed / (rounds * len(calls)))
            left.append((after, rounds * len(calls)))
        else:
            rounds *= 2
    return samples, left


def _left_behind(session: Session, left: list[tuple[float, int]], samples: _Samples) -> str | None:
    """What calls leave; nothing is told of several ranks, which wait for each other."""
    return left_behind(left, samples) if session.device.is_asynchronous and session.group.size == 1 else None


def _judge_samples(session: Session, samples: _Samples, timing: Timing) -> None:
    """Warn of a median whose interval is wider than was asked for, however the sampling ended."""
    width = stats.relative_width(samples)
    if width > timing.precision:
        found, asked = _told_apart(width, timing.precision)
        # Long calls take more than the time that was allowed, since an interval needs a few samples.
        spent = max(timing.max_time, dict(session.phases)["sample"])
        session.warn(
            "noisy",
            f"the median's 95% interval is {found} wide after {len(samples)} samples in {spent:.3g} s "
            f"(asked for {asked})",
            _against_noise(width, timing.precision, spent),
        )


def _against_noise(width: float, precision: float, spent: float) -> str:
    """What makes the interval narrow enough: more samples, if a minute of them would do; else less noise."""
    # The interval of n samples is as wide as 1/sqrt(n), as long as the samples vary in the same way.
    needed = spent * (width / precision) ** 2
    if needed <= _LONGEST_ADVISED:
        return f"sample for longer: --max-time {math.ceil(10 * needed) / 10:g} is enough if the samples go on like this"
    quieter = "end other work on this machine and measure again"
    bearable = math.ceil(100 * width) if width < 1 else 100
    return f"{quieter}, or ask for less: --precision {bearable}%" if bearable < 100 else quieter


def _told_apart(width: float, precision: float) -> tuple[str, str]:
    """Both as percentages, with the digits that tell them apart."""
    found = asked = ""
    for digits in range(2, 8):
        found, asked = (f"{_plain(100 * share, digits)}%" for share in (width, precision))
        if found != asked:
            break
    return found, asked


def _plain(value: float, digits: int) -> str:
    text = units.significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _judge_timer(session: Session, samples: _Samples, batch: Batch) -> None:
    """Warn of short calls that were timed alone."""
    if batch.not_captured:
        session.warn(
            "not-captured",
            f"the calls can't be captured into a graph, so each was timed alone: {batch.not_captured}",
            "let the launch only issue work, without waiting for the device; or declare timer='launch' for the variant",
        )
    if batch.timer == "launch" and statistics.median(samples) < _SHORT:
        session.warn(
            "launch-timed",
            "each call was timed alone, between two events and with the L2 flushed, not in a graph",
            "subtract about 3 us for the launch, or compare only with times that were taken in the same way",
        )


def _judge_conditions(session: Session, lowered: list[list[str]], others: int) -> None:
    """Warn of lowered clocks, and of other processes on a device.

    lowered: the reasons of each rank, whose device all other ranks may wait for. others: how many processes.
    """
    if others > 0:
        session.warn(
            "shared",
            f"{others} other process{'es' * (others > 1)} computed on the device meanwhile",
            "end what else runs on it, and measure again",
        )
    for rank, reasons in enumerate(lowered):
        if reasons:
            which = f"the device of rank {rank}" if session.group.size > 1 else "the device"
            session.warn(
                "throttled",
                f"{which} lowered its clocks: {', '.join(reasons)}",
                "let it cool, check its power limit and what else runs on it, and measure again",
            )
