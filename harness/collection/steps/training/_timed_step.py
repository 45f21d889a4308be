"""The check of a timed step: whether it computes the loss of its weights for the batch that it finds, and trains.

The batch is replaced by one that no step has seen, in the same memory. A step that was captured with the numbers of an
earlier batch, or that does nothing, has the loss of another batch or another time then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.collection.models import ResNetConfig
from harness.collection.steps.training._settings import math_modes
from harness.collection.steps.training._trainer import Trainer, batch_of, built, module_of
from harness.ops import Context, Tensors

if TYPE_CHECKING:
    import torch

OFF, OFF_WITH_BATCH_NORM = 0.05, 0.2
"""How far off a loss may be, over what it must be: halves are off by less, a loss of another batch by more. Batch norm
of few numbers makes much of a rounding."""
SPREADS = 4.0
"""What is allowed besides, in spreads of the reference's loss, which has dropout and stochastic depth of its own."""
DRAWS = 4


def recheck(_: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about a timed step on a new batch. t.steps: the TimedSteps."""
    import torch

    trainer: Trainer = t.steps.trainer
    fresh = batch_of(replace(trainer.setup, seed=secrets.randbelow(2**31)), trainer.kind)
    for own, new in zip(trainer.batch, fresh, strict=True):
        own.copy_(new)
    before = [weight.detach().clone() for weight in trainer.masters]
    scale = trainer.scaler.get_scale()
    wanted = reference_losses(trainer, fresh)
    call()
    want, spread = float(wanted.mean()), float(wanted.std())
    share = OFF_WITH_BATCH_NORM if isinstance(trainer.setup.config, ResNetConfig) else OFF
    got, allowed = float(t.steps.last), share * abs(want) + SPREADS * spread
    if not abs(got - want) <= allowed:
        yield (
            f"losses: a timed step on a new batch has a loss of {got:.3f}; for this batch, and the weights that there "
            f"were, the loss is {want:.3f}, give or take {allowed:.3f}"
        )
    # A step whose gradients overflow is skipped, and lowers the scale.
    skipped = trainer.scaler.get_scale() < scale
    if not skipped and all(map(torch.equal, before, trainer.masters)):
        yield "weights: a timed step changed none of them"


def reference_losses(trainer: Trainer, batch: Any) -> torch.Tensor:
    """The loss of a trainer's weights for a batch, by torch's own model in higher precision, several times."""
    import torch

    setup = trainer.setup
    wide = torch.float64 if setup.device.type == "cpu" else torch.float32
    model = built(setup.model, None, setup.seed, setup.device).to(wide)
    numbers = type(batch)(*(one.to(wide) if one.is_floating_point() else one for one in batch))
    with torch.no_grad(), math_modes(tf32=False):
        for weight, master in zip(model.parameters(), trainer.masters, strict=True):
            weight.copy_(master)
        loss = module_of(setup.model).loss
        return torch.stack([loss(model, numbers).double() for _ in range(DRAWS)])
