"""The first step of a rung, weight by weight: its gradients against a reference's, and how weights moved.

Losses of a few steps hardly tell whether all of a model is trained: the losses of a model with frozen attention differ
little. So a twin of the rung, with a small batch, makes one step, and what it left in the optimizer's state is
compared: the gradient as the optimizer saw it, and the update that follows from it.

In twin and reference nothing is left to chance: dropout and stochastic depth drop nothing. The twin has their kernels
all the same, forward and backward. Batch norm is as in training. The twin of a rung with a graph makes its step by a
replay.

The twin's gradients of micro-batches are compared with the gradients of the whole batch.

A compiled rung has two twins. One isn't compiled, and as small as another rung's. The other one is compiled and has the
case's batch, so that its code is what is timed, but for the share that is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.collection.models import Config, ResNetConfig
from harness.collection.models.files import module_of
from harness.collection.steps.training._rungs import Rung
from harness.collection.steps.training._settings import (
    EAGER,
    forget_compiled,
    math_modes,
    reference_modes,
    side_stream,
)
from harness.collection.steps.training._trainer import Setup, Trainer, batch_of, built, keep_little, parts_of

if TYPE_CHECKING:
    import torch

NOTHING = 2.0**-40
"""The share that a twin drops: above 0, so that kernels of dropout run, and too small for any number to be dropped."""
SIZE = 8
"""The batch of the twin: little time and memory, and enough elements for batch norm."""
TIMES = 8.0
"""How far off a gradient may be, in units in the last place of the rung's type, for a model of one block. Errors of
blocks add up like errors of random signs, as the root of their number."""
MOST = 0.8
"""The most that is ever allowed: a gradient that is twice as large, or 0, is off by all of its length."""
QUIET = 0.25
"""The last gamma of a ResNet's blocks here. With 1, as new models have it, each block makes more of rounding errors,
until gradients in halves have nothing in common with the reference's."""
FLAT = 2e-6
"""The share of a typical element below which a weight's elements have no gradient but what rounding makes. The gradient
of a bias of keys is 0, since softmax doesn't change where all scores move alike."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""What torch's AdamW has, and ours, unless told."""
UPDATE = 1e-3
"""How far off the update may be from the one that follows from the gradient, beside the rounding of the weight."""
CPU_SPARE = 0.02
"""Where `_sums_in_halves`, what a gradient may be off by beside a share of its length, as a share of a typical one."""
_NAMED = 3  # weights that a complaint names


@dataclass(frozen=True, slots=True)
class FirstGradients:
    """What the first step's gradients must be.

    wanted: one for each weight, by name, in the host's memory. typical: a typical element, the root of the mean square
    of all. names: of the weights whose gradient is more than what rounding makes.
    """

    wanted: Mapping[str, torch.Tensor]
    typical: float
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step did to a weight.

    name: the parameter's. before, after: the weight, or its master. copy: what the model computes with: the weight, or
    the master rounded. state: the optimizer's, by torch's names. grad: the gradient that the state tells of, None where
    it tells of none.
    """

    name: str
    before: torch.Tensor
    after: torch.Tensor
    copy: torch.Tensor
    state: Mapping[str, Any]
    grad: torch.Tensor | None

    @property
    def is_trained(self) -> bool:
        """Whether there has been a gradient."""
        return self.grad is not None and bool(self.grad.any())


def complaints(rung: Rung, setup: Setup) -> tuple[str, ...]:
    """What is wrong with the first step of the rung's twins: gradients that are missing or wrong, and wrong updates.

    setup: the case's, whose batch is cut to `SIZE` for the twin that isn't compiled.
    """
    small = _small(setup)
    found = _complaints(replace(rung, compiled=""), small, _of_whole(small))
    if rung.compiled:
        # A graph replays kernels that its twin without a graph launches too, so one compilation checks both.
        plain = replace(rung, name="", summary="", base="", rows=(), graph=False)
        found += tuple(f"compiled, {complaint}" for complaint in _of_compiled(plain, setup))
    return found


@lru_cache(maxsize=8)
def _of_compiled(rung: Rung, setup: Setup) -> tuple[str, ...]:
    """What is wrong with the first step of compiled code. It is kept, since to compile takes long."""
    try:
        return _complaints(rung, setup, reference(setup))
    finally:
        forget_compiled()


def _complaints(rung: Rung, setup: Setup, wanted: FirstGradients) -> tuple[str, ...]:
    with math_modes(rung.tf32):
        trainer, before = _after_one_step(rung, setup)
        return tuple(_wrong(trainer, before, wanted))


def _small(setup: Setup) -> Setup:
    """The setup with a smaller batch, which can be cut into the same number of micro-batches."""
    parts = setup.micro_batches
    return replace(setup, size=parts * max(1, min(setup.size, SIZE) // parts))


def _of_whole(setup: Setup) -> FirstGradients:
    return reference(replace(setup, micro_batches=1))


def untrained(trainer: Trainer, setup: Setup) -> Iterator[str]:
    """A complaint about weights of a trainer that should have a gradient, and had none in the steps that it made."""
    absent = [one for one in _trained(trainer, trainer.masters) if not one.is_trained]
    yield from _missing(absent, _of_whole(_small(setup)))


def allowed(rung: Rung, setup: Setup) -> float:
    """How far off gradients may be, as a share of their length.

    Float32 has some bits to spare, since sums over a batch and fast convolutions lose some. A ReLU makes more of a
    rounding: an element close to 0 may lose its gradient, and the share of such elements is the rounding's.
    """
    import torch

    exact = 2.0**-10 if rung.tf32 else 2.0**-17
    unit = exact if rung.half == "none" else torch.finfo(setup.dtype).eps
    if rung.fp8:
        return MOST  # e5m2 has a unit in the last place of 25%
    config = setup.config
    if isinstance(config, ResNetConfig):
        return min(MOST, 2 * TIMES * math.sqrt(unit))
    return min(MOST, TIMES * unit * math.sqrt(config.blocks) * (4 if _sums_in_halves(rung, setup) else 1))


def _sums_in_halves(rung: Rung, setup: Setup) -> bool:
    """Whether torch adds up gradients of LayerNorm's weights in halves, as it does on a CPU."""
    return rung.half != "none" and setup.device.type == "cpu" and not isinstance(setup.config, ResNetConfig)


# ---- What must be, and what is.


def reference(setup: Setup) -> FirstGradients:
    """The gradients in float32 without TF32, NCHW; in float64 on a CPU."""
    import torch

    wide = torch.float64 if setup.device.type == "cpu" else torch.float32
    return _reference(replace(setup, dtype=wide, layout="nchw"))


@lru_cache(maxsize=2)
def _reference(setup: Setup) -> FirstGradients:
    """The model is torch's own, with no trainer around it. Its gradients are kept for the other rungs of a case.

    Two are kept: the small batch's, and the case's. Blocks keep only what enters them, so that the case's batch fits;
    a case's micro-batches go through the model one after the other, since all together may not fit.
    """
    with reference_modes():
        model = calmed(built(setup.model, None, setup.seed, setup.device).to(setup.dtype), share=0.0)
        keep_little(model)
        for part in parts_of(batch_of(setup, setup.dtype), setup.micro_batches):
            (module_of(setup.model).loss(model, part) / setup.micro_batches).backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    if setup.clip is not None:
        norm = math.sqrt(sum(float(_length(grad)) ** 2 for grad in found.values()))
        found = {name: grad * min(1.0, setup.clip / norm) for name, grad in found.items()}
    sizes = {name: float(_length(grad)) / math.sqrt(grad.numel()) for name, grad in found.items()}
    squares = sum(size**2 * found[name].numel() for name, size in sizes.items())
    typical = math.sqrt(squares / sum(grad.numel() for grad in found.values()))
    names = frozenset(name for name, size in sizes.items() if size > FLAT * typical)
    return FirstGradients({name: grad.cpu() for name, grad in found.items()}, typical, names)


def calmed(model: torch.nn.Module, share: float = NOTHING) -> torch.nn.Module:
    """The model with blocks that add less to their input in a ResNet.

    share: the most that dropout and stochastic depth drop.
    """
    for module in model.modules():
        if hasattr(module, "bn3"):  # a block of a ResNet
            module.bn3.weight.data.fill_(QUIET)
        for name in ("p", "dropout", "drop_path"):
            if hasattr(module, name):
                setattr(module, name, min(getattr(module, name), share))
    return model


def _after_one_step(rung: Rung, setup: Setup) -> tuple[Trainer, list[torch.Tensor]]:
    """A trainer after one step, which was a replay if the rung has a graph; and the masters before it."""
    import torch

    trainer = Trainer(rung, setup)
    calmed(trainer.model)
    before = [master.detach().clone() for master in trainer.masters]
    if not rung.graph:
        trainer.loss_of_step()
        return trainer, before
    with side_stream():
        for _ in range(EAGER):
            trainer.loss_of_step()
    replay = trainer.as_graph()
    _begin_anew(trainer, before)
    replay()
    if setup.device.type == "cuda":
        torch.cuda.synchronize()  # the graph, which goes now, must have ended
    return trainer, before


def _begin_anew(trainer: Trainer, masters: list[torch.Tensor]) -> None:
    """Put weights and the optimizer's state back to what they were before the first step, where they lie in memory."""
    import torch

    with torch.no_grad():
        for weight, master, before in zip(trainer.weights, trainer.masters, masters, strict=True):
            for one in (weight, master):
                one.copy_(before)
            for name, value in trainer.optimizer.state[master].items():
                if isinstance(value, torch.Tensor):
                    value.copy_(before if name == "master" else torch.zeros_like(value))


def _trained(trainer: Trainer, before: Iterable[torch.Tensor]) -> Iterator[Trained]:
    """What the optimizer's state tells of each weight."""
    decay, state_of = trainer.setup.config.decay, trainer.optimizer.state
    weights = trainer.model.named_parameters()
    for (name, weight), master, first in zip(weights, trainer.masters, before, strict=True):
        state = state_of.get(master, {})
        mean, momentum, grad = state.get("exp_avg"), state.get("momentum_buffer"), None
        if mean is not None:
            grad = mean.double() / (1 - BETAS[0])
        elif momentum is not None:
            grad = momentum.double() - decay * first.detach().double()
        yield Trained(name, first, state.get("master", master).detach(), weight.detach(), state, grad)


# ---- The comparison.


def _wrong(trainer: Trainer, before: list[torch.Tensor], wanted: FirstGradients) -> Iterator[str]:
    spare = CPU_SPARE * wanted.typical if _sums_in_halves(trainer.rung, trainer.setup) else 0.0
    absent: list[Trained] = []
    gradients: dict[str, float] = {}
    updates: dict[str, float] = {}
    unlike: list[str] = []
    for one in _trained(trainer, before):
        if not one.copy.equal(one.after.to(one.copy.dtype)):
            unlike.append(one.name)
        if one.grad is None or not one.is_trained:
            absent.append(one)
            continue
        updates[one.name] = _distance_of_update(trainer.setup.config, one)
        if one.name in wanted.names:
            want = wanted.wanted[one.name].to(one.grad)
            length = _length(want) + spare * math.sqrt(want.numel())
            gradients[one.name] = float(_length(one.grad - want) / length)
    yield from _missing(absent, wanted)
    yield from _too_far("the gradient", gradients, allowed(trainer.rung, trainer.setup))
    yield from _too_far("the update", updates, UPDATE)
    if unlike:
        yield f"weights: {_listed(unlike)} differ from what their masters are, rounded"


def _missing(found: list[Trained], wanted: FirstGradients) -> Iterator[str]:
    if missing := [one.name for one in found if one.name in wanted.names]:
        yield f"weights: {len(missing)} of {len(wanted.wanted)} had no gradient: {_listed(missing)}"


def _too_far(what: str, distances: Mapping[str, float], most: float) -> Iterator[str]:
    far = sorted((name for name, off in distances.items() if not off <= most), key=lambda name: -distances[name])
    if far:
        listed = _listed([f"{name} by {distances[name]:.2%}" for name in far])
        yield f"weights: {what} in the first step is off by more than {most:.2%} of its length: {listed}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f", and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _distance_of_update(config: Config, one: Trained) -> float:
    """How far the update is from the first update of AdamW, or of SGD with momentum, over the length of that update.

    AdamW's mean of squares is compared, too. The decay of SGD, 1e-4 of a weight, is too small to be missed here.
    """
    import torch

    assert one.grad is not None
    before, squares = one.before.double(), one.state.get("exp_avg_sq")
    if squares is None:
        step, off = one.state["momentum_buffer"].double(), 0.0
    else:
        # Both means are corrected for their beginning with 0, so the first step divides the gradient by its size.
        step = one.grad / (one.grad.abs() + EPSILON) + config.decay * before
        want = (1 - BETAS[1]) * one.grad.square()
        off = float(_length(squares.double() - want) / _length(want))
    want = -config.rate * step
    rounding = torch.finfo(one.after.dtype).eps * _length(before)
    distance = (_length(one.after.double() - before - want) - rounding).clamp(min=0) / _length(want)
    return max(off, float(distance))


def _length(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.linalg.vector_norm(tensor, dtype=torch.float64)
