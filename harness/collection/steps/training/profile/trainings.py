"""Trains the models of cases from several seeds. On a GPU several processes do so at a time.

A step of eager torch waits for its host most of the time, so that processes beside each other hardly slow each other
down. A user's step has the batch that it has, which may fill the device, so its trainings are made one by one. Of
several devices each rank is a process that trains with the others.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from harness import devices
from harness.collection.steps.ladder._declared import step_of
from harness.collection.steps.ladder._rungs import OF_RANKS, LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.training import _curves, _ladders
from harness.collection.steps.training._curves import TrainingCurve
from harness.collection.steps.training.profile.files import CaseCurves, LossPlan, file_of
from harness.devices import Device, is_out_of_memory
from harness.errors import described
from harness.model import Case
from harness.ops import Catalogue
from harness.profile import RunCase
from harness.ranks import ALONE, Group
from harness.session import EndedError
from harness.store import dump

OwnStep = tuple[LadderRung, StepSheet]
Training = tuple[int, int]
"""The number of a case, and the seed."""
_MOST_PROCESSES = 6
"""Processes that train at a time, each with a model and a context of its own in the device's memory."""
_FIRST_SEED = 1


@contextmanager
def started(
    every: Sequence[Case], plan: LossPlan, catalogue: Catalogue, device: Device, group: Group = ALONE
) -> Iterator[RunCase]:
    """A function that writes the losses of the case of a number, counted from 1, once its trainings are over.

    group: the ranks of the cases; the first one writes. The function raises EndedError for a case that can't be
    trained, and what a training raised. At the end of the context no training begins any more.
    """
    cases = dict(enumerate(every, 1))
    reasons = {number: _obstacle(case, catalogue) for number, case in cases.items()}
    todo = [(number, case) for number, case in cases.items() if not reasons[number]]
    alone = any(_own_step(case, catalogue) for _, case in todo)
    count = 1 if alone else min(_processes(device), plan.seeds * len(todo))
    trainings = {
        (number, seed): partial(_trained, case, device.kind, seed, plan, _own_step(case, catalogue))
        for number, case in todo
        for seed in _seeds(plan)
    }
    # Without other processes a training may need the group, which can't be sent to another process.
    beside = _Beside(trainings, count) if count > 1 else None

    def curve(number: int, seed: int) -> TrainingCurve:
        return beside.curve((number, seed)) if beside else trainings[number, seed](group)

    def train(number: int) -> None:
        if reason := reasons[number]:
            raise EndedError("unsupported", reason)
        try:
            curves = tuple(curve(number, seed) for seed in _seeds(plan))
        except MemoryError as error:
            raise EndedError("out_of_memory", str(error)) from None
        if group.rank:
            return
        own = _own_step(cases[number], catalogue)
        text = dump(CaseCurves(cases[number].id, plan.steps, own[1].size if own else plan.size, curves))
        file_of(plan.files, number).write_text(text, encoding="utf-8")

    try:
        yield train
    finally:
        if beside:
            beside.end()


def _seeds(plan: LossPlan) -> range:
    return range(_FIRST_SEED, _FIRST_SEED + plan.seeds)


def _processes(device: Device) -> int:
    """How many processes may train at a time. Each keeps a core busy, and a CPU that trains has none left over."""
    return max(1, min(_MOST_PROCESSES, (os.cpu_count() or 1) // 2)) if device.kind == "cuda" else 1


def _obstacle(case: Case, catalogue: Catalogue) -> str:
    """Why a case can't be trained; '' if it can."""
    own = _own_step(case, catalogue)
    if _ladders.rung_of(case.op, case.variant) is None and own is None:
        return "it isn't a step of a training"
    if own is None and case.world > 1:
        return "of several devices only users' steps are trained longer"
    if own and own[0].name in OF_RANKS and case.world == 1:
        return "on one device it does what another rung does"
    unsupported = catalogue[case.op].variants[case.variant].unsupported
    return (unsupported(case) if unsupported else None) or ""


def _own_step(case: Case, catalogue: Catalogue) -> OwnStep | None:
    """The rung and the step of a case of a user's step; None for other cases."""
    return step_of(catalogue[case.op].variants[case.variant])


@dataclass(slots=True)
class _Beside:
    """Trainings in `count` processes, or in fewer where so many don't fit into the device's memory together."""

    trainings: Mapping[Training, Callable[[], TrainingCurve]]
    count: int
    _pool: ProcessPoolExecutor = field(init=False)
    _futures: dict[Training, Future[TrainingCurve]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._begin(self.trainings)

    def curve(self, training: Training) -> TrainingCurve:
        """The training's curve. Raises MemoryError for a training that doesn't fit even alone."""
        while True:
            try:
                return self._futures[training].result()
            except MemoryError:
                if self.count == 1:
                    raise
                self._halve()

    def end(self) -> None:
        """Wait for the trainings that run; none begins any more."""
        self._pool.shutdown(cancel_futures=True)

    def _halve(self) -> None:
        """Go on with half of the processes, with all trainings that lacked memory or had not begun."""
        self.end()
        self.count //= 2
        self._begin(key for key, future in self._futures.items() if future.cancelled() or _lacked_memory(future))

    def _begin(self, trainings: Iterable[Training]) -> None:
        self._pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"))
        self._futures |= {key: self._pool.submit(self.trainings[key]) for key in trainings}


def _lacked_memory(future: Future[TrainingCurve]) -> bool:
    return isinstance(future.exception(), MemoryError)


def _trained(  # noqa: PLR0913, PLR0917 - as above
    case: Case, kind: str, seed: int, plan: LossPlan, own: OwnStep | None, group: Group = ALONE
) -> TrainingCurve:
    """One training. It runs in any of the processes, so it raises only errors that can be sent to another one.

    These are MemoryError where the device has too little memory, and RuntimeError for all other causes.
    """
    device = devices.kinds()[kind].torch_device
    try:
        if own:
            from harness.collection.steps.ladder import _learning

            place = (group.rank, group.size)
            return _learning.trained(*own, case.dtype, device, seed=seed, steps=plan.steps, place=place)
        return _curves.trained(case, device, size=plan.size, seed=seed, steps=plan.steps)
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(next(iter(str(error).splitlines()), type(error).__name__)) from None
        raise RuntimeError(described(error)) from None
