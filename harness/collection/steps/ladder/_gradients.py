"""Gradients of a trainer's first step, beside others: compared on the device, in float64, weight by weight.

What is kept lies in the host's memory, and comes to the device a piece at a time, since a model may nearly fill it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.collection.steps.ladder._optimizers import weights_of
from harness.collection.steps.ladder._trainer import StepTrainer
from harness.collection.steps.training._trainer import whole

if TYPE_CHECKING:
    import torch

_PIECE = 2**20
"""Elements that are compared at once: 8 MB in float64, which a CPU's cache holds, and which keep a GPU busy."""


@dataclass(frozen=True, slots=True)
class KeptGradients:
    """The gradients of a step by name, in the host's memory, and the squares of their lengths."""

    tensors: Mapping[str, torch.Tensor]
    squares: Mapping[str, float]

    def share(self, distances: Mapping[str, float], names: Collection[str]) -> float:
        """How far others are from these weights' gradients together, over the length of these.

        distances: the squares of distances by name; a weight that has none, and one that isn't kept, counts for
        nothing.
        """
        both = [(distances[name], self.squares[name]) for name in names if name in distances]
        distance, length = (math.sqrt(sum(column)) for column in zip(*both, strict=True)) if both else (0.0, 0.0)
        return distance / length if length else 0.0


@dataclass(frozen=True, slots=True)
class ComparedGradients:
    """A step's gradients beside kept ones.

    distances: squares of how far they are from the kept ones, by name. given: the names of those that aren't all 0.
    """

    distances: Mapping[str, float]
    given: frozenset[str]


def kept(trainer: StepTrainer) -> tuple[KeptGradients, torch.Tensor]:
    """Make a step. Gives the gradients that the optimizer used in it, unscaled, and its loss.

    Weights that the optimizer doesn't have have none.
    """
    tensors: dict[str, torch.Tensor] = {}
    squares: dict[str, torch.Tensor] = {}

    def see(name: str, one: torch.Tensor) -> None:
        tensors[name] = one.cpu()
        squares[name] = sum_of_squares(one)

    loss = _made(trainer, see)
    return KeptGradients(tensors, _numbers(squares)), loss


def compared(trainer: StepTrainer, wanted: KeptGradients) -> tuple[ComparedGradients, torch.Tensor]:
    """Make a step. Gives its gradients beside others, as far as both have them, and its loss."""
    distances: dict[str, torch.Tensor] = {}
    given: dict[str, torch.Tensor] = {}

    def see(name: str, one: torch.Tensor) -> None:
        if name in wanted.tensors:
            distances[name] = sum_of_squares(one, wanted.tensors[name])
            given[name] = one.any().double()

    loss = _made(trainer, see)
    names = frozenset(name for name, has in _numbers(given).items() if has)
    return ComparedGradients(_numbers(distances), names), loss


def sum_of_squares(one: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of squares of a tensor, or of its distance from another one, as a float64 on the tensor's device.

    other: of the same shape, on any device. Elements become float64 before anything is computed with them.
    """
    import torch

    found = torch.zeros((), dtype=torch.float64, device=one.device)
    pieces = one.reshape(-1).split(_PIECE)
    others = [None] * len(pieces) if other is None else other.reshape(-1).split(_PIECE)
    for piece, beside in zip(pieces, others, strict=True):
        off = piece.to(torch.float64, copy=True)
        if beside is not None:
            off -= beside.to(one.device)
        found += off.dot(off)
    return found


def _numbers(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Tensors of one number each as numbers, by one copy from the device."""
    import torch

    return dict(zip(tensors, torch.stack([*tensors.values()]).tolist(), strict=True)) if tensors else {}


def _made(trainer: StepTrainer, see: Callable[[str, torch.Tensor], None]) -> torch.Tensor:
    """Make a step. `see` gets each gradient that the optimizers use in it, unscaled, with its weight's name."""
    held = {id(one) for one in _of_optimizers(trainer)}
    named = [(name, one) for name, one in trainer.model.named_parameters() if id(one) in held and one.requires_grad]

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        # A scaler, the file's own too, leaves the scale here for an optimizer that unscales gradients itself.
        scale = 1.0 if (left := getattr(optimizer, "grad_scale", None)) is None else float(left)
        own = {id(one) for one in weights_of(optimizer)}
        for name, one in named:
            if id(one) in own and one.grad is not None:
                # Every rank puts together the parts of every gradient.
                see(name, _plain(whole(one.grad.detach()) / scale))

    hooks = [one.register_step_pre_hook(before) for one in trainer.optimizers]
    try:
        return trainer.loss_of_step()
    finally:
        for hook in hooks:
            hook.remove()


def _of_optimizers(trainer: StepTrainer) -> Iterator[torch.Tensor]:
    for optimizer in trainer.optimizers:
        yield from weights_of(optimizer)


def _plain(one: torch.Tensor) -> torch.Tensor:
    """A tensor with all its elements; of a complex one its real and imaginary parts: both are compared."""
    import torch

    dense = one.to_dense() if one.is_sparse else one
    return torch.view_as_real(dense) if dense.is_complex() else dense


class Redrawn:
    """A trainer whose first step is made several times: as it is, then from weights that are moved by rounding."""

    def __init__(self, trainer: StepTrainer) -> None:
        """Keep the weights, in the host's memory."""
        self.trainer = trainer
        trained = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad]
        self._first = {name: _own(one.detach()).to("cpu", copy=True) for name, one in trained}

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that are trained, by name, or this rank's parts of them. A step may put them elsewhere."""
        named = dict(self.trainer.model.named_parameters())
        return {name: _own(named[name].detach()) for name in self._first}

    def compared(self, wanted: KeptGradients, share: float = 0.0, seed: int = 0) -> ComparedGradients:
        """Make the step. Gives its gradients beside others.

        share: each weight is moved by up to this share of its size: at random, by the seed, and alike on all ranks.
        """
        self.trainer.begin_drawing()
        if share:
            set_near(self.weights.values(), self._first.values(), share, seed, self.trainer.setup.device)
        return compared(self.trainer, wanted)[0]

    def moved(self) -> frozenset[str]:
        """The names of the weights that the first step has changed, on any rank, and of those with a rate of 0.

        All ranks must ask.
        """
        import torch
        from torch import distributed

        groups = [group for one in self.trainer.optimizers for group in one.param_groups if not group.get("lr")]
        resting = {id(one) for group in groups for one in group["params"]}
        named = dict(self.trainer.model.named_parameters())
        changed = {name: not torch.equal(one, self._first[name].to(one.device)) for name, one in self.weights.items()}
        found = torch.tensor([float(has or id(named[name]) in resting) for name, has in changed.items()])
        if self.trainer.setup.world > 1:  # a rank may have no part of a weight
            distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return frozenset(name for name, has in zip(changed, found.tolist(), strict=True) if has)


def _own(weight: torch.Tensor) -> torch.Tensor:
    """The part of a weight that this rank has, in the weight's memory."""
    own: torch.Tensor = weight.to_local() if hasattr(weight, "to_local") else weight
    return own


def set_near(
    weights: Iterable[torch.Tensor], values: Iterable[torch.Tensor], share: float, seed: int, device: torch.device
) -> None:
    """Set weights on a device to values, each moved by up to a share of its size: at random, alike on all ranks."""
    import torch

    with torch.no_grad():
        generator = torch.Generator(device).manual_seed(seed)
        for weight, value in zip(weights, values, strict=True):
            moves = torch.rand(value.shape, generator=generator, device=device).mul_(2).sub_(1)
            weight.copy_(value).mul_(moves.mul_(share).add_(1))
