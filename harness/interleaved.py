"""Variants of an op timed in turns, in one process: what changes the machine meanwhile changes all of them alike.

Each round takes a few samples of each variant. The ratio of two variants is taken round by round, so it says more than
the ratio of two times that were taken one after the other.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from harness import intact, stats
from harness.devices import Device
from harness.measure import Sampler, made, ready
from harness.model import Case, Measurement, Status, Timing
from harness.ops import Op
from harness.ranges import NvtxRange
from harness.session import EndedError, Session

_ROUND = 3  # samples of a variant in a round
_FEWEST_ROUNDS, _MOST_ROUNDS = 10, 200


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast one variant is as another: the median over rounds; above 1 is faster.

    low, high: its 95% interval, by ranks, over the rounds. verdict: 'faster' or 'slower' where the interval lies on one
    side of 1, else '~'. It holds for this process: another one has other addresses, which may move a time by some
    tenths of a percent.
    """

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, others: Sequence[float], own: Sequence[float]) -> Ratio:
        """The ratio of times of the same rounds, in any unit: of the other variant over the own ones."""
        ratios = [other / one for other, one in zip(others, own, strict=True)]
        bounds = stats.median_interval(ratios)
        if bounds is None:
            raise ValueError(f"{len(ratios)} rounds are too few for an interval")
        return cls(statistics.median(ratios), *bounds, len(ratios))

    @property
    def verdict(self) -> Literal["faster", "slower", "~"]:
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "~"

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}] {self.verdict}, {self.rounds} rounds"


def interleaved(
    cases: Sequence[Case], op: Op, device: Device, timing: Timing
) -> tuple[list[Measurement], Mapping[str, tuple[float, ...]]]:
    """Check all variants, and time them in turns; timing: what each of them may take.

    Gives a measurement for each case, and for each variant that was timed the seconds of a call in each round. Rounds
    end when the ratios to the first case have the precision asked for. Raises what a variant raises.
    """
    sessions = [Session(case, op, device) for case in cases]
    found: dict[str, dict[str, object]] = {}
    status: dict[str, Status] = {}
    rounds: dict[str, list[float]] = {}
    with intact.settings_kept(), ExitStack() as stack:
        samplers: dict[str, Sampler] = {}
        for session in sessions:
            stack.enter_context(session)
            try:
                ready(session)
                samplers[session.case.variant] = Sampler(session, timing)
            except EndedError as ended:
                status[session.case.variant], found[session.case.variant] = ended.status, {"error": ended.text}
        before = device.conditions()
        rounds, stopped = _rounds(samplers, timing, len(samplers) * timing.max_time)
        after = device.conditions()
        for session in sessions:
            name = session.case.variant
            if name in samplers:
                session.phases.append(("sample", samplers[name].seconds))
                try:
                    found[name], status[name] = samplers[name].finish(before, after, stopped), "ok"
                except EndedError as ended:
                    found[name], status[name] = {"error": ended.text}, ended.status
    measured = [made(each, status[each.case.variant], found[each.case.variant]) for each in sessions]
    return measured, {name: tuple(seconds) for name, seconds in rounds.items() if status[name] == "ok"}


def _rounds(samplers: Mapping[str, Sampler], timing: Timing, seconds: float) -> tuple[dict[str, list[float]], str]:
    """Seconds of a call of each variant in each round, and why the rounds ended. Each round has an order by chance."""
    order = list(samplers)
    rounds: dict[str, list[float]] = {name: [] for name in order}
    deadline = time.monotonic() + seconds
    with NvtxRange("race"):
        for number in range(_MOST_ROUNDS if order else 0):
            random.shuffle(order)
            for name in order:
                rounds[name].append(statistics.median(samplers[name].round(_ROUND)))
            if number + 1 >= _FEWEST_ROUNDS:
                if _is_precise(list(rounds.values()), timing.precision):
                    return rounds, "interval"
                if time.monotonic() >= deadline:
                    break
    return rounds, "time"


def _is_precise(rounds: Sequence[Sequence[float]], precision: float) -> bool:
    """Whether each ratio to the first variant, and its own time where it is alone, is known well enough."""
    first, *others = rounds
    ratios = [[a / b for a, b in zip(first, other, strict=True)] for other in others] or [list(first)]
    return all(stats.relative_width(ratio) <= precision for ratio in ratios)
