"""Longer trainings of a user's step from several seeds: whether a rung learns as the baseline does, whatever the seed.

The steps go through a few batches that the file's batch() gives, in turn: the same for all rungs and seeds. Weights and
dropout come from the seed. A step whose gradients overflow in float16 is skipped, as it is in the user's own training.
Of several ranks each has batches of its own; the loss of a step is the mean over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.collection.steps.ladder import _ranks
from harness.collection.steps.ladder._rungs import LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._steps import told, trainer_of
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, next_batch, of_rank, tensors_of
from harness.collection.steps.training._curves import BATCHES, TrainingCurve, free
from harness.collection.steps.training._settings import EAGER, forget_compiled, math_modes, side_stream
from harness.errors import UsageError

if TYPE_CHECKING:
    import torch

_SEED = 17
"""The seed of the first batch; each next batch has the next one."""


def trained(  # noqa: PLR0913 - what a training is made of
    rung: LadderRung,
    sheet: StepSheet,
    dtype: str,
    device: torch.device,
    *,
    seed: int,
    steps: int,
    place: tuple[int, int] = (0, 1),
) -> TrainingCurve:
    """Train the user's model from this seed, as the rung does.

    dtype: the case's. place: this rank, and how many there are; all of them must call.

    The memory that it took is free again afterwards. Raises UsageError, with a reason in plain words, for a rung that
    fails, and for batches of different sizes.
    """
    rank, world = place
    free(device)  # what a training has left that failed
    with ExitStack() as modes:
        modes.callback(free, device)
        modes.enter_context(math_modes(rung.tf32))
        if rung.compiled:
            modes.callback(forget_compiled)
        modes.enter_context(told(rung, world))
        setup = of_rank(StepSetup(sheet.source, sheet.size, seed, device, dtype), sheet, rank, world)
        learning = _Learning(trainer_of(rung, setup), batches(setup))
        learning.trainer.begin_drawing()  # since batches have set torch's seed, too
        return learning.made(steps)


def batches(setup: StepSetup) -> list[list[torch.Tensor]]:
    """The tensors of a rank's batches, on the host or wherever the file makes them. The setup's seed is none of theirs.

    Raises UsageError if their sizes differ: a graph and a compiled model are for one size.
    """
    return _kept_batches(setup.source, setup.size, setup.rank)


@lru_cache(maxsize=1)
def _kept_batches(source: str, size: int, rank: int) -> list[list[torch.Tensor]]:
    """They are made once, since a loader goes on with each call, and all rungs and seeds must have the same ones."""
    found = []
    for number in range(BATCHES):
        made = next_batch(source, size, _SEED + number + rank * _ranks.APART_BY)
        found.append([one.detach().clone() for one in tensors_of(made)])
    sizes = {tuple(tuple(one.shape) for one in batch) for batch in found}
    if len(sizes) > 1:
        raise UsageError(
            f"batch() gives tensors of {len(sizes)} sizes in {BATCHES} calls, and a graph is for one size",
            "let batch() give tensors of one size in each call, by padding, or by drop_last=True of a DataLoader",
        )
    return found


class _Learning:
    """Makes steps of a trainer, each with its own batch, and keeps what they gave. It waits for each of them."""

    def __init__(self, trainer: StepTrainer, every: Sequence[Sequence[torch.Tensor]]) -> None:
        self.trainer, self.batches = trainer, every
        self.places = [*tensors_of(trainer.batch)]
        self.losses: list[float] = []
        self.skipped: list[int] = []

    def made(self, steps: int) -> TrainingCurve:
        """The curve of so many steps. The steps of a graph are replays, but for the first few."""
        graph = self.trainer.rung.graph
        first = min(EAGER, steps) if graph else steps
        with ExitStack() as stream:
            if graph:
                stream.enter_context(side_stream())
            for _ in range(first):
                self._add(self.trainer.loss_of_step)
        if first < steps:
            replay = self.trainer.as_graph()
            for _ in range(steps - first):
                self._add(replay)
        losses = _ranks.mean(self.losses) if self.trainer.setup.world > 1 else self.losses
        return TrainingCurve(tuple(losses), tuple(self.skipped), ())

    def _add(self, step: Callable[[], torch.Tensor]) -> None:
        number, scaler = len(self.losses), self.trainer.scaler
        for place, one in zip(self.places, self.batches[number % BATCHES], strict=True):
            place.data.copy_(one)  # where a graph and a compiled model expect it
        before = scaler.get_scale()
        self.losses.append(float(step()))
        if scaler.get_scale() < before:
            self.skipped.append(number)
