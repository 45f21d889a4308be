"""The check of a timed step: whether it computes the loss of its weights for the batch that it finds, and trains.

The batch is replaced by one that no step has seen, in the same memory. A step that was captured with the numbers of an
earlier batch, or that does nothing, has the loss of another batch or another time then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.collection.models import ResNetConfig
from harness.collection.models.files import module_of
from harness.collection.steps.training._settings import reference_modes
from harness.collection.steps.training._trainer import Trainer, built, parts_of, whole
from harness.ops import Context, Tensors

if TYPE_CHECKING:
    import torch

OFF, OFF_WITH_BATCH_NORM = 0.05, 0.2
"""How far off a loss may be, over what it must be: halves are off by less, a loss of another batch by more. Batch norm
of few numbers makes much of a rounding."""
SPREADS = 4.0
"""What is allowed besides, in spreads of the reference's loss, which has dropout and stochastic depth of its own."""
DRAWS, MORE_DRAWS = 4, 32
"""How many losses of the reference are drawn. A spread of few is often far too small, so that a complaint rests on
more of them."""


def recheck(_: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about a timed step on a new batch. t.steps: the TimedSteps."""
    trainer: Trainer = t.steps.trainer
    fresh = trainer.new_batch(secrets.randbelow(2**31))
    for own, new in zip(trainer.batch, fresh, strict=True):
        own.copy_(new)
    state = State(trainer)
    call()
    yield from state.complaints(fresh, float(t.steps.last))


class State:
    """The weights of a trainer, as they were before a step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._scale = trainer, trainer.scaler.get_scale()
        self._weights = [whole(weight.detach()).clone() for weight in trainer.masters]

    def complaints(self, batch: Any, got: float) -> Iterator[str]:
        """What is wrong with a step on a batch, whose loss was `got`."""
        import torch

        trainer = self._trainer
        share = OFF_WITH_BATCH_NORM if isinstance(trainer.setup.config, ResNetConfig) else OFF
        yield from loss_complaints(got, lambda draws: reference_losses(trainer, batch, self._weights, draws), share)
        # A step whose gradients overflow is skipped, and lowers the scale.
        skipped = trainer.scaler.get_scale() < self._scale
        pairs = zip(self._weights, trainer.masters, strict=True)
        if not skipped and all(torch.equal(before, whole(now.detach())) for before, now in pairs):
            yield "weights: a timed step changed none of them"


def loss_complaints(got: float, draw: Callable[[int], torch.Tensor], share: float) -> Iterator[str]:
    """A complaint if the loss of a step is another one. draw: gives so many losses of the reference."""
    for draws in (DRAWS, MORE_DRAWS):
        losses = draw(draws)
        want = float(losses.mean())
        allowed = share * abs(want) + SPREADS * float(losses.std())
        if abs(got - want) <= allowed:
            return
    yield (
        f"losses: a timed step on a new batch has a loss of {got:.4f}; for this batch, and the weights that there "
        f"were, the loss is {want:.4f}, give or take {allowed:.4f}"
    )


def reference_losses(trainer: Trainer, batch: Any, weights: Sequence[torch.Tensor], draws: int) -> torch.Tensor:
    """The loss of weights of a trainer for a batch, by torch's own model in higher precision, several times."""
    import torch

    setup = trainer.setup
    wide = torch.float64 if setup.device.type == "cpu" else torch.float32
    model = built(setup.model, None, setup.seed, setup.device).to(wide)
    numbers = type(batch)(*(one.to(wide) if one.is_floating_point() else one for one in batch))
    with torch.no_grad(), reference_modes():
        for own, given in zip(model.parameters(), weights, strict=True):
            own.copy_(given)
        loss, parts = module_of(setup.model).loss, parts_of(numbers, setup.micro_batches)
        every = [torch.stack([loss(model, part).double() for part in parts]).mean() for _ in range(draws)]
        return torch.stack(every)
