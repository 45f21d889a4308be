"""Pairs of fresh processes, one of each code, that measure the same cases one after the other."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TypeGuard

from harness.gate.observer import GateObserver
from harness.gate.records import CaseEvidence, Pair, Side, Stage
from harness.gate.worktree import Checkout, shared_root
from harness.model import Job, Measurement
from harness.processes.nursery import Nursery
from harness.processes.supervisor import Workers
from harness.runner import compiles

Jobs = Mapping[Side, Sequence[Job]]
BALANCED = 10
"""Pairs in sequence, wherever the sequence begins, in half of which each side goes first."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One process: which side it measures, in which pair, and which side goes first in that pair."""

    side: Side
    pair: int
    first: Side


@dataclass(slots=True)
class PairMeasurer:
    """Measures pairs, and keeps the measurements and the pairs. device: its kind.

    draw: decides which side goes first, as `order` says. ahead: how many of the next processes start while one
    measures. Such a process loads torch, which takes seconds, and leaves the device alone before its turn. Where none
    may start meanwhile, both processes of a pair are forked from one that has loaded torch. nursery: one that has done
    so already, for the first pair. begun: a process of each side that was started already, for the first pair. after:
    starts while the last process measures, for what comes after the pairs.
    measurements: of each side by case id, one a process.
    """

    device: str
    codes: Mapping[Side, Checkout]
    draw: random.Random
    ahead: int
    observer: GateObserver
    nursery: Nursery | None = None
    begun: dict[Side, Workers] = field(default_factory=dict)
    after: Workers | None = None
    measurements: dict[Side, dict[str, list[Measurement]]] = field(
        default_factory=lambda: {"base": defaultdict(list), "now": defaultdict(list)}
    )
    pairs: dict[str, list[Pair]] = field(default_factory=lambda: defaultdict(list))
    _begun: int = 0
    _order: Iterator[Side] = field(init=False)

    def __post_init__(self) -> None:
        self._order = order(self.draw)

    def take_up(self, cases: Sequence[CaseEvidence]) -> None:
        """Go on from the pairs of an earlier run with the same seed: in its order, with new numbers of processes."""
        for found in cases:
            key = found.case.id
            self.measurements["base"][key], self.measurements["now"][key] = list(found.base), list(found.now)
            self.pairs[key] = list(found.pairs)
        self._begun = 1 + max((m.process for found in cases for m in (*found.base, *found.now)), default=-1)
        self._order = islice(self._order, self._begun, None)

    def changes(self, cases: Sequence[str], stage: Stage) -> dict[str, list[float]]:
        """Changes of the pairs of a stage, by case: ln(time of the base / time now) of each pair."""
        return {case: [pair.change for pair in self.pairs[case] if pair.stage == stage] for case in cases}

    def measure(self, stage: Stage, count: int, jobs: Jobs) -> None:
        """Measure `count` pairs. jobs: what each side knows, common cases first and in the same order."""
        turns = [turn for turn in self._turns(count) if jobs[turn.side]]
        self.observer.planned(stage, count, sum(len(jobs[turn.side]) for turn in turns))
        with ExitStack() as stack:
            root = shared_root(self.codes.values())
            alone = set() if self.ahead else {turn.pair for turn in turns}
            compiler = compiles(jobs["now"])
            nurseries = {pair: stack.enter_context(self._nursery(root, compiler)) for pair in sorted(alone)}
            workers = [stack.enter_context(self._workers(turn.side, nurseries.get(turn.pair))) for turn in turns]
            for index, turn in enumerate(turns):
                if turn.pair in nurseries and turn.side == turn.first:
                    self._settle(nurseries[turn.pair])
                for ahead in range(index + 1, min(index + 1 + self.ahead, len(turns))):
                    workers[ahead].begin(jobs[turns[ahead].side][0].case.world)
                if self.after and self.ahead > len(turns) - 1 - index:
                    self.after.begin(1)
                found = dict(self._process(turn, workers[index], jobs[turn.side]))
                workers[index].restart()
                for case, measurement in found.items():
                    self.measurements[turn.side][case].append(measurement)
                if turn.side != turn.first:
                    self._pair(found, turn, stage)
                    if turn.pair in nurseries:
                        nurseries[turn.pair].close()

    def _turns(self, count: int) -> Iterator[_Turn]:
        for pair, first in enumerate(islice(self._order, count), self._begun):
            yield _Turn(first, pair, first)
            yield _Turn("now" if first == "base" else "base", pair, first)
        self._begun += count

    def _nursery(self, root: Path | None, compiler: bool) -> Nursery:
        there, self.nursery = self.nursery, None
        return there or Nursery(root, compiler=compiler)

    def _settle(self, nursery: Nursery) -> None:
        """Fork both processes of a pair or none: a forked one isn't to be compared with one that was started."""
        if not all(nursery.serves(code.environment) for code in self.codes.values()):
            nursery.close()

    def _workers(self, side: Side, nursery: Nursery | None) -> Workers:
        return self.begun.pop(side, None) or self.codes[side].workers(self.device, nursery=nursery)

    def _process(self, turn: _Turn, workers: Workers, jobs: Sequence[Job]) -> Iterator[tuple[str, Measurement]]:
        for job in jobs:
            self.observer.started(job, turn.side)
            measurement = workers.measure(job, turn.pair)
            self.observer.finished(measurement, turn.side)
            yield job.case.id, measurement

    def _pair(self, second: Mapping[str, Measurement], turn: _Turn, stage: Stage) -> None:
        """Join what the second process of a pair found with what the first one did."""
        of_first = self.measurements[turn.first]
        for case, measurement in second.items():
            if case not in of_first:
                continue
            sides = (of_first[case][-1], measurement)
            base, now = sides if turn.first == "base" else reversed(sides)
            if pair := pair_of(base, now, turn.first, stage):
                self.pairs[case].append(pair)
        self.observer.paired(turn.first)


def order(draw: random.Random) -> Iterator[Side]:
    """Which side goes first in each pair, without end.

    A machine that becomes steadily slower makes the second process of each pair look slower. That cancels over any
    BALANCED pairs in sequence, as a look has them, since each side goes first in half of them. It holds wherever
    the sequence begins, since the order repeats after BALANCED pairs. In the first two pairs each side goes first once,
    by a random draw, and so on for each two pairs that follow. So the three pairs of a screen never have all one order.
    """
    period: list[Side] = []
    for _ in range(BALANCED // 2):
        first: Side = draw.choice(("base", "now"))
        period += (first, "now" if first == "base" else "base")
    return cycle(period)


def pair_of(base: Measurement, now: Measurement, first: Side, stage: Stage) -> Pair | None:
    """The pair that two processes make of a case; None unless both have a time that a ratio can be made of."""
    if not _is_time(base.time) or not _is_time(now.time):
        return None
    return Pair(base.time, now.time, first, stage)


def _is_time(seconds: float | None) -> TypeGuard[float]:
    return seconds is not None and 0 < seconds < math.inf
