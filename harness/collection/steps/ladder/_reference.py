"""What a rung of a user's step is held to: the step as the file has it, and how far off others may be.

Gradients are compared weight by weight, as the optimizer saw them in the first step of a twin of the rung, whose
dropout drops nothing as far as modules say their share. How far off they may be is measured: as far as torch's
autocast, or float32, puts it for this model, and as far as chance puts it, each times four. Rounding decides on which
side of 0 a few inputs of a ReLU lie, and each that changes sides moves gradients by percents; so torch's own are made
several times, from weights that differ by what rounding makes of them. A compiled rung's twin is compiled.

Of several ranks each has the losses of its own batch, and the gradients are the mean over ranks, which the host
computes in the reference.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.collection.steps.ladder import _ranks
from harness.collection.steps.ladder._optimizers import weights_of
from harness.collection.steps.ladder._refused import refuse_no_number
from harness.collection.steps.ladder._rungs import FLOAT32, LadderRung
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, blocks_of
from harness.collection.steps.training._first_step import FLAT, MOST, TIMES
from harness.collection.steps.training._settings import forget_compiled, math_modes, reference_modes
from harness.collection.steps.training._steps import STEPS
from harness.collection.steps.training._trainer import whole

if TYPE_CHECKING:
    import torch

BY_HOST = replace(FLOAT32, way="host")
_YARDS = 4.0
"""How far off a gradient may be, over how far torch's own is, and over how far chance puts it."""
_CHANCES = 3
"""How often the reference's gradients are made anew where a step draws random numbers besides dropout's."""
_CHANCE = 2.0
"""How far off gradients that chance decides may be together, over how far chance puts them."""
_FLOOR = {"float64": 2.0**-12, "float32": 2.0**-12, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The unit in the last place of a type; for float32 what sums over a batch and fast convolutions lose of it."""
_DRAWS = 6
"""How often torch's own gradients are made: from the weights as they are, then from weights moved by rounding."""
_NAMED = 3

Gradients = Mapping[str, "torch.Tensor"]


@lru_cache(maxsize=2)
def reference_losses(setup: StepSetup) -> Mapping[str, tuple[tuple[float, ...], float]]:
    """The reference's losses, and how far chance puts them apart: the main one by the name '', others by theirs."""
    with reference_modes():
        wanted = _losses(setup, STEPS)
        for number, loss in enumerate(wanted[""], 1):
            refuse_no_number(loss, setup.source, number)
        others = _losses(replace(setup, chance=1), STEPS if _draws(setup) else 1)
    return {name: (own, _apart(own, others.get(name, own))) for name, own in wanted.items()}


def _apart(some: Iterable[float], others: Iterable[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=False))


def _losses(setup: StepSetup, count: int) -> Mapping[str, tuple[float, ...]]:
    """The losses of the first steps by name; names that every step has."""
    import torch

    trainer = _reference_trainer(setup)
    every = [{"": trainer.loss_of_step(), **trainer.named} for _ in range(count)]
    names = [name for name in every[0] if all(name in one for one in every)]
    return {name: tuple(torch.stack([one[name].double() for one in every]).flatten().tolist()) for name in names}


def _draws(setup: StepSetup) -> bool:
    """Whether the loss depends on chance, on any rank."""
    first, other = (_losses(replace(setup, chance=chance, world=1), 1) for chance in (0, 1))
    return _ranks.agreed(first != other, setup.world)


def _reference_trainer(setup: StepSetup) -> StepTrainer:
    return StepTrainer(BY_HOST, replace(setup, wide=can_be_wide(setup)))


@lru_cache(maxsize=2)
def can_be_wide(setup: StepSetup) -> bool:
    """Whether the model can be trained in float64 on a CPU, on all ranks; some have float32 written out."""
    if setup.device.type != "cpu":
        return False
    fails = False
    try:
        StepTrainer(FLOAT32, replace(setup, wide=True, world=1)).loss_of_step()
    except (RuntimeError, TypeError, ValueError):
        fails = True
    return not _ranks.agreed(fails, setup.world)


def gradient_complaints(rung: LadderRung, setup: StepSetup) -> Iterator[str]:
    """What is wrong with the gradients of the rung's twin, and with weights that it left as they were."""
    calm = replace(setup, calm=True)
    wanted = _reference_gradients(calm)
    kind = rung.dtype(setup.half) or rung.arithmetic
    # A graph replays kernels that its twin without a graph launches too.
    twin = replace(rung, name="", summary="", base="", graph=False)
    found, moved = _compiled_gradients(twin, calm) if rung.compiled else _first_gradients(twin, calm)
    yards = _yardstick(calm, kind)
    # What is smaller than the type's rounding of a typical gradient, and all wrong in torch's own, has no right value.
    lost = {name for name, share in wanted.shares.items() if share < _FLOOR[kind] and yards.get(name, 0.0) > MOST}
    names = wanted.names - lost
    missing = [name for name in names if name not in found or not bool(found[name].any())]
    if missing:
        yield f"weights: {len(missing)} of {len(names)} had no gradient: {_listed(missing)}"
    still = [name for name in names if name in found and name not in moved]
    if still:
        yield f"weights: the first step left {len(still)} of {len(names)} as they were: {_listed(still)}"
    least = TIMES * _FLOOR[kind] * math.sqrt(wanted.blocks)
    far = {}
    for name in names - wanted.by_chance - {*missing}:
        allowed = min(MOST, max(least, _YARDS * (yards.get(name, 0.0) + wanted.spread[name])))
        if not (off := _distance(found, wanted.gradients, (name,))) <= allowed:
            far[name] = f"{name} by {off:.2%}, allowed are {allowed:.2%}"
    if far:
        parts = "; parts of a batch are for a loss that is a mean over items" if rung.parts > 1 else ""
        yield f"weights: the gradient of the first step is off: {_listed([far[name] for name in sorted(far)])}{parts}"
    if wanted.by_chance <= found.keys():
        yield from _of_chance(found, wanted)


def _of_chance(found: Gradients, wanted: WantedGradients) -> Iterator[str]:
    """A complaint about gradients that chance decides. Of one alone nothing can be said, of many together something."""
    off, allowed = _distance(found, wanted.gradients, wanted.by_chance), max(MOST, _CHANCE * wanted.apart)
    if not off <= allowed:
        yield (
            f"weights: the gradients of {len(wanted.by_chance)} weights, which depend on the step's random numbers, "
            f"are off by {off:.2%} together, allowed are {allowed:.2%}: {_listed([*wanted.by_chance])}"
        )


@dataclass(frozen=True, slots=True)
class WantedGradients:
    """What the first step's gradients must be: by name, in the host's memory.

    names: of the weights whose gradient is more than what rounding makes. shares: how large it is there, over a typical
    one. spread: how far chance puts each. by_chance: the names of those that chance puts too far to be compared each,
    as the noise of a diffusion model does; apart: how far it puts them together. blocks: of the model, at least 1:
    errors of blocks add up like errors of random signs.
    """

    gradients: Gradients
    names: frozenset[str]
    shares: Mapping[str, float]
    spread: Mapping[str, float]
    by_chance: frozenset[str]
    apart: float
    blocks: int


@lru_cache(maxsize=1)
def _reference_gradients(calm: StepSetup) -> WantedGradients:
    with reference_modes():
        trainer = _reference_trainer(calm)
        found, _ = _made(trainer)
        chances = range(1, 1 + _CHANCES) if _draws(calm) else ()
        off = [_squares(_made(_reference_trainer(replace(calm, chance=chance)))[0], found) for chance in chances]
    sizes = {name: float(one.double().norm()) / math.sqrt(one.numel()) for name, one in found.items()}
    count = sum(one.numel() for one in found.values())
    typical = math.sqrt(sum(size**2 * found[name].numel() for name, size in sizes.items()) / max(1, count))
    shares = {name: size / typical for name, size in sizes.items() if size > FLAT * typical}
    names = frozenset(shares)
    spread = {name: max((_share(one, (name,)) for one in off), default=0.0) for name in names}
    by_chance = frozenset(name for name in names if _YARDS * spread[name] > MOST)
    apart = max((_share(one, by_chance) for one in off), default=0.0)
    return WantedGradients(found, names, shares, spread, by_chance, apart, max(1, len(blocks_of(trainer.model))))


@lru_cache(maxsize=8)
def _yardstick(calm: StepSetup, kind: str) -> Mapping[str, float]:
    """How far off the gradients of eager torch are that computes in this type, at most of some draws."""
    tf32 = replace(BY_HOST, tf32=kind != "float32")
    rung = tf32 if kind in ("float32", "tf32") else replace(tf32, half="own" if kind == calm.half else "other")
    wanted = _reference_gradients(calm)
    far: dict[str, float] = {}
    with math_modes(rung.tf32):
        trainer = StepTrainer(rung, calm)
        weights = [weight.detach().clone() for weight in trainer.weights]
        for draw in range(_DRAWS):
            trainer.begin_drawing()
            _set_near(trainer.weights, weights, draw and _FLOOR[kind], draw)
            found, _ = _made(trainer)
            for name in wanted.names & found.keys():
                far[name] = max(far.get(name, 0.0), _distance(found, wanted.gradients, (name,)))
    return far


def _set_near(weights: Iterable[torch.Tensor], values: Iterable[torch.Tensor], share: float, seed: int) -> None:
    """Set weights to values, each moved by up to a share of its size: at random, and alike on all ranks."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            noise = 2 * torch.rand(value.shape, generator=generator) - 1 if share else torch.zeros(())
            weight.copy_(value * (1 + share * noise.to(value.device)))


@lru_cache(maxsize=8)
def _compiled_gradients(rung: LadderRung, calm: StepSetup) -> tuple[Gradients, frozenset[str]]:
    """The gradients of compiled code. They are kept, since to compile takes long."""
    try:
        return _first_gradients(rung, calm)
    finally:
        forget_compiled()


def _first_gradients(rung: LadderRung, calm: StepSetup) -> tuple[Gradients, frozenset[str]]:
    with math_modes(rung.tf32):
        return _made(StepTrainer(rung, calm))


def _made(trainer: StepTrainer) -> tuple[Gradients, frozenset[str]]:
    """The gradients that the optimizer used in a step, unscaled, and the names of the weights that the step changed.

    Weights that the optimizer doesn't have have neither.
    """
    import torch

    seen: dict[str, torch.Tensor] = {}
    groups = [group for one in trainer.optimizers for group in one.param_groups]
    held = {id(one) for group in groups for one in group["params"]}
    named = [(name, one) for name, one in trainer.model.named_parameters() if id(one) in held and one.requires_grad]
    before = {name: whole(one.detach()).clone() for name, one in named}

    def see(optimizer: torch.optim.Optimizer, *_: object) -> None:
        # A scaler, the file's own too, leaves the scale here for an optimizer that unscales gradients itself.
        scale = 1.0 if (left := getattr(optimizer, "grad_scale", None)) is None else float(left)
        own = {id(one) for one in weights_of(optimizer)}
        mine = [(name, one) for name, one in named if id(one) in own and one.grad is not None]
        seen.update({name: _as_real(whole(one.grad.detach()) / scale).cpu() for name, one in mine})

    hooks = [one.register_step_pre_hook(see) for one in trainer.optimizers]
    try:
        trainer.loss_of_step()
    finally:
        for hook in hooks:
            hook.remove()
    resting = {id(one) for group in groups if not group.get("lr") for one in group["params"]}
    # Every rank puts together the parts of every weight.
    after = {name: whole(one.detach()) for name, one in named}
    moved = {name for name, one in named if id(one) in resting or not torch.equal(after[name], before[name])}
    return seen, frozenset(moved)


def _as_real(one: torch.Tensor) -> torch.Tensor:
    """A tensor, or of a complex one its real and imaginary parts: both are compared."""
    import torch

    return torch.view_as_real(one) if one.is_complex() else one


def _distance(got: Gradients, want: Gradients, names: Collection[str]) -> float:
    """How far the gradients of these weights are from others, over the length of these; of weights that both have."""
    return _share(_squares({name: got[name] for name in names if name in got}, want), names)


def _squares(got: Gradients, want: Gradients) -> dict[str, tuple[float, float]]:
    """By name: the square of the distance of two gradients, and of the length of the second one."""
    both = {name: (one.double(), want[name].double()) for name, one in got.items() if name in want}
    return {name: (float((one - other).norm()) ** 2, float(other.norm()) ** 2) for name, (one, other) in both.items()}


def _share(squares: Mapping[str, tuple[float, float]], names: Collection[str]) -> float:
    """The distance over the length, of these weights together."""
    found = [squares[name] for name in names if name in squares]
    distance, length = (math.sqrt(sum(column)) for column in zip(*found, strict=True)) if found else (0.0, 0.0)
    return distance / length if length else 0.0


def _listed(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:_NAMED]) + (f", and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def forget() -> None:
    """Forget all losses and gradients that are kept."""
    for kept in (reference_losses, can_be_wide, _reference_gradients, _yardstick, _compiled_gradients):
        kept.cache_clear()
