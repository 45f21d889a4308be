"""Two clocks beside each other: whether the device's time of a round is all the time that its work took.

A call may leave work behind: on another stream, in a thread, in a tensor that computes when it is read. Or the device's
clock may lie. The host's clock sees both, since the device is idle when a round begins and when it ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter  # bound here, before any code of a user runs

from harness import units
from harness.devices import Batch, Device

_LONGER = 1.2
"""How many times as long a round may take by the host's clock as by the device's."""
_LONGER_ONCE = 1.5  # the same where there is one round, which other work of the host may have held up
_LEFT_SHARE = 0.05  # of a round, which may go on after its last call
_HELD_UP = 5e-3  # seconds for which other work may hold up the host in a round
_LATE = 2e-3  # the same at the end of a loop
_NOTICED = 500e-6  # seconds after which the host has noticed that the device is idle
_FEW = 3  # rounds from which on the best one says what the host needs


@dataclass(frozen=True, slots=True)
class _Round:
    """Seconds of a round: by the device's clock, by the host's, and until the device was idle after that."""

    device: float
    host: float
    left: float


class Clocks:
    """Runs batches, and notes what both clocks say."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rounds: list[_Round] = []

    def run(self, batch: Batch, count: int) -> list[float]:
        """So many samples of a batch, between an idle device and an idle device."""
        clock = self._device.clock
        self._device.synchronize()
        begin = perf_counter()
        first = clock.mark()
        samples = batch.run(count)
        (elapsed,) = clock.between([first, clock.mark()])
        ended = perf_counter()
        self._device.synchronize()
        self._rounds.append(_Round(elapsed, ended - begin, perf_counter() - ended))
        return samples

    def complaint(self, *, may_leave: bool = False) -> str | None:
        """What the rounds took that isn't in the device's time; None if that is all.

        may_leave: whether calls may leave work behind, as `Op.works_ahead` says.
        """
        if not self._device.is_asynchronous:
            return None
        left, few = min(self._rounds, key=lambda one: one.left), len(self._rounds) < _FEW
        if not may_leave and left.left > max(_HELD_UP if few else _NOTICED, _LEFT_SHARE * left.device):
            return (
                f"the device works for {units.seconds(left.left)} after the calls have ended: they leave work on other "
                "streams or in threads, which isn't in the time; let the current stream wait for it. Another process "
                "that uses the device looks the same: end it"
            )
        times = _LONGER_ONCE if few else _LONGER
        best = min(self._rounds, key=lambda one: one.host - one.device)
        if best.host - best.device > _HELD_UP and best.host > times * best.device:
            return (
                f"calls that took {units.seconds(best.host)} by the host's clock took {units.seconds(best.device)} by "
                "the device's: part of their work isn't in the time, the clock was changed, or another process uses "
                "the device"
            )
        return None


def left_behind(loops: Sequence[tuple[float, int]], samples: Sequence[float]) -> str | None:
    """A complaint if calls in a loop leave more work than their samples say.

    loops: of each loop, seconds from the last call's issue to the end of all work, and its calls. samples: seconds of a
    call.
    """
    each = statistics.median(samples)
    beyond = [(left - _LONGER_ONCE * calls * each, left, calls) for left, calls in loops]
    over, left, calls = min(beyond)
    if over <= _LATE:
        return None
    return (
        f"the device works for {units.seconds(left)} after {calls} calls were issued, which by their times take "
        f"{units.seconds(calls * each)}: part of their work isn't in the time, or another process uses the device"
    )
