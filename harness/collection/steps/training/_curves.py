"""Longer trainings on a few learnable batches: whether a rung learns as the other rungs do, whatever the seed.

The data of a timed step is noise, which a model can only remember. Here images are their class's coarse pattern with
noise on it, and the words that BERT and Llama predict stand in their input. So losses fall as they do in real
trainings. The data is the same for all rungs and seeds; weights and dropout come from the seed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.collection.models import BertConfig, LlamaConfig
from harness.collection.models.files import module_of
from harness.collection.steps.training._ladders import rung_of_case
from harness.collection.steps.training._rungs import asked_of
from harness.collection.steps.training._settings import EAGER, forget_compiled, math_modes, side_stream
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.model import Case

if TYPE_CHECKING:
    import torch

BATCHES = 8
"""Batches that the steps go through, in turn."""
_CLASSES = 10
_WORDS = 32
"""Classes of images and words of sequences that occur: few, so that 300 steps suffice to learn them."""
_PATTERN = 4
"""Squares of one colour on a side of an image's pattern."""
_SEED = 17
"""The seed of the data."""
_OVERFLOWING = 2.0**60
"""A scale of the loss with which the gradients of any model overflow in halves."""


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """What a training gave: the loss of each step, and which steps were skipped since gradients had overflowed.

    Steps are counted from 0. forced: the steps whose gradients were made to overflow, by a huge scale of the loss. A
    rung whose loss isn't scaled leaves these steps out, so that all rungs make the same number of steps.
    """

    losses: tuple[float, ...]
    skipped: tuple[int, ...]
    forced: tuple[int, ...]


def trained(case: Case, device: torch.device, *, size: int, seed: int, steps: int) -> TrainingCurve:
    """Train the model of a case from this seed, as its rung does, with batches of `size`.

    The memory that it took is free again afterwards. Raises ValueError for a case that is no rung of a training.
    """
    import torch

    rung = rung_of_case(case)
    if rung is None:
        raise ValueError(f"{case.id}: isn't a rung of a training")
    setup = Setup(str(case.values["model"]), size, seed, device, getattr(torch, case.dtype), **asked_of(case))
    free(device)  # what a training has left that failed
    with ExitStack() as modes:
        modes.callback(free, device)
        modes.enter_context(math_modes(rung.tf32))
        if rung.compiled:
            modes.callback(forget_compiled)
        return _trained(Trainer(rung, setup), steps)


def _trained(trainer: Trainer, steps: int) -> TrainingCurve:
    """Make the steps. The steps of a graph are replays, but for the first few."""
    graph = trainer.rung.graph
    curve = _Recorder(trainer, steps)
    first = min(EAGER, steps) if graph else steps
    with ExitStack() as stream:
        if graph:
            stream.enter_context(side_stream())
        for _ in range(first):
            curve.add(trainer.loss_of_step)
    if first < steps:
        replay = trainer.as_graph()
        for _ in range(steps - first):
            curve.add(replay)
    return TrainingCurve(tuple(curve.losses), tuple(curve.skipped), curve.forced)


class _Recorder:
    """Makes steps of a trainer, each with its own batch, and keeps what they gave. It waits for each of them."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self.trainer = trainer
        self.batches = batches(trainer.setup)
        self.losses: list[float] = []
        self.skipped: list[int] = []
        self.forced: tuple[int, ...] = (steps // 3, 2 * steps // 3)

    def add(self, step: Callable[[], torch.Tensor]) -> None:
        """Make the next step."""
        number, scaler = len(self.losses), self.trainer.scaler
        for place, one in zip(self.trainer.batch, self.batches[number % BATCHES], strict=True):
            place.copy_(one)  # where a graph and a compiled model expect it
        if number not in self.forced:
            before = scaler.get_scale()
            loss, is_skipped = float(step()), scaler.get_scale() < before
        elif scaler.is_enabled():
            usual = scaler.get_scale()
            scaler.update(_OVERFLOWING)
            loss, is_skipped = float(step()), scaler.get_scale() < _OVERFLOWING
            scaler.update(usual)
        else:
            loss, is_skipped = self._loss_alone(), True
        self.losses.append(loss)
        if is_skipped:
            self.skipped.append(number)

    def _loss_alone(self) -> float:
        """The loss without a step."""
        import torch

        with torch.no_grad(), torch.autocast(self.trainer.setup.device.type, enabled=False):
            return float(self.trainer.loss(self.trainer.called, self.trainer.batch))


def batches(setup: Setup) -> Sequence[Any]:
    """The data, as batches of the model's module. It depends on the model, the size and the kind of device only."""
    import torch

    generator = torch.Generator(setup.device).manual_seed(_SEED)
    patterns = torch.randn(_CLASSES, 3, _PATTERN, _PATTERN, generator=generator, device=setup.device)
    make = module_of(setup.model).batch
    ways = {BertConfig: _words, LlamaConfig: _next_words}
    learnable = ways.get(type(setup.config), lambda given: _images(given, patterns))
    return [learnable(make(setup.config, setup.size, generator, setup.device)) for _ in range(BATCHES)]


def _images(given: Any, patterns: torch.Tensor) -> Any:
    """The images with the pattern of their class on them. Each class is one of the first few."""
    labels = given.labels % len(patterns)
    side = given.images.shape[-1] // _PATTERN
    drawn = patterns[labels].repeat_interleave(side, 2).repeat_interleave(side, 3)
    return given._replace(images=given.images + drawn, labels=labels)


def _words(given: Any) -> Any:
    """The sequences in few words. What is predicted is the word at its place, and whether the first one is odd."""
    from harness.collection.models.bert import IGNORED, PADDING

    tokens = (given.tokens % _WORDS + PADDING + 1).where(given.mask, PADDING)
    labels = tokens.gather(1, given.positions).where(given.labels != IGNORED, IGNORED)
    return given._replace(tokens=tokens, labels=labels, follows=tokens[:, 0] % 2)


def _next_words(given: Any) -> Any:
    """The sequences in few words. What is predicted is the word before, which only attention can find."""
    tokens = given.tokens % _WORDS
    return given._replace(tokens=tokens, labels=tokens.roll(1, 1))


def free(device: torch.device) -> None:
    """Give back the memory of a training: several processes may train on one device."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
