"""What a rung of a user's step is held to: the step as the file has it, and how far off others may be.

Gradients are compared weight by weight, as the optimizer saw them in the first step of a twin of the rung, whose
dropout drops nothing as far as modules say their share. How far off they may be is measured: as far as torch's
autocast, or float32, puts it for this model, and as far as chance puts it, each times four. Rounding decides on which
side of 0 a few inputs of a ReLU lie, and each that changes sides moves gradients by percents; so torch's own are made
several times, from weights that differ by what rounding makes of them. A compiled rung's twin is compiled.

What a rung does wrong it does in each step. But a gradient may be off in one step and right in the next one: on an H200
PyTorch's autocast had gradients of one layer's queries and keys that were off by 66% to 78% in one of three processes
(reports/h200/ladder_bert in revision 8dcf5490, bfloat16; the cause isn't known). So a gradient that is off is made
again, from weights moved by rounding. It is wrong if it is off each time; else a warning tells of it. Where torch's own
are off as often, draws of torch's are off, too, and allow as much.

Of several ranks each has the losses of its own batch, and the gradients are the mean over ranks, which each
rank of the reference computes from the gathered gradients of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from harness.collection.steps.ladder import _ranks
from harness.collection.steps.ladder._gradients import ComparedGradients, KeptGradients, Redrawn, compared, kept
from harness.collection.steps.ladder._refused import refuse_no_number
from harness.collection.steps.ladder._rungs import FLOAT32, LadderRung
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, blocks_of
from harness.collection.steps.training._first_step import FLAT, MOST, TIMES
from harness.collection.steps.training._settings import forget_compiled, math_modes, reference_modes
from harness.collection.steps.training._steps import STEPS

if TYPE_CHECKING:
    import torch

GATHERED = replace(FLOAT32, way="gathered")
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
_TRIES = 8
"""How often a rung's gradient is made at most; it must be off each time. What is off by chance in a share p of
all steps is taken for a fault in (1 - p)^6 p^8 of all checks of a layer: 1 in 130,000 at p = 30%, 1 in 10^12 at 3%."""
_NAMED = 3


@lru_cache(maxsize=2)
def reference_losses(setup: StepSetup) -> Mapping[str, tuple[tuple[float, ...], float]]:
    """The reference's losses, and how far chance puts them apart: the main one by the name '', others by theirs."""
    with reference_modes():
        wanted = _losses(setup)
        for number, loss in enumerate(wanted[""], 1):
            refuse_no_number(loss, setup.source, number)
        others = _losses(replace(setup, chance=1), wanted)
    return {name: (own, _apart(own, others.get(name, own))) for name, own in wanted.items()}


def _apart(some: Iterable[float], others: Iterable[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=False))


def _losses(setup: StepSetup, known: Mapping[str, tuple[float, ...]] | None = None) -> Mapping[str, tuple[float, ...]]:
    """The losses of the first steps by name; names that every step has.

    known: losses by another chance. If the first ones are the same on all ranks, only the first step is made.
    """
    import torch

    trainer = _reference_trainer(setup)
    every = [{"": trainer.loss_of_step(), **trainer.named}]
    if known is None or _ranks.agreed(_unlike(every[0], known), setup.world):
        every += [{"": trainer.loss_of_step(), **trainer.named} for _ in range(1, STEPS)]
    names = [name for name in every[0] if all(name in one for one in every)]
    return {name: tuple(torch.stack([one[name].double() for one in every]).flatten().tolist()) for name in names}


def _unlike(losses: Mapping[str, torch.Tensor], known: Mapping[str, tuple[float, ...]]) -> bool:
    return any(float(one) != known[name][0] for name, one in losses.items() if name in known)


def _reference_trainer(setup: StepSetup) -> StepTrainer:
    return StepTrainer(GATHERED, replace(setup, wide=can_be_wide(setup)))


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


@dataclass(frozen=True, slots=True)
class GradientVerdict:
    """What was found of a rung's gradients.

    complaints: what is wrong with them, and with weights that a step left as they were. unsteady: weights whose
    gradients were off in the first step and right in a later one, with how far.
    """

    complaints: tuple[str, ...]
    unsteady: tuple[str, ...]


def gradient_verdict(rung: LadderRung, setup: StepSetup) -> GradientVerdict:
    """What is wrong with the gradients of the rung's twin."""
    # A graph replays kernels that its twin without a graph launches too.
    twin = replace(rung, name="", summary="", base="", graph=False)
    return (_of_compiled if rung.compiled else _verdict)(twin, replace(setup, calm=True))


@lru_cache(maxsize=8)
def _of_compiled(rung: LadderRung, calm: StepSetup) -> GradientVerdict:
    """The verdict on compiled code. It is kept, since to compile takes long."""
    try:
        return _verdict(rung, calm)
    finally:
        forget_compiled()


def _verdict(rung: LadderRung, calm: StepSetup) -> GradientVerdict:
    kind = rung.dtype(calm.half) or rung.arithmetic
    wanted = _reference_gradients(calm)
    allowed = _allowed(calm, kind)
    with math_modes(rung.tf32):
        twin = Redrawn(StepTrainer(rung, calm))
        found = twin.compared(wanted.kept)
        complaints = [*_missing(allowed, found, twin.moved())]
        off = wrong = _too_far(found, wanted, allowed)
        for again in range(1, _TRIES):
            if not _ranks.agreed(bool(wrong), calm.world):
                break
            # By other seeds than torch's own draws have.
            later = twin.compared(wanted.kept, _FLOOR[kind], _DRAWS + again)
            right = later.given - _too_far(later, wanted, allowed).keys()
            wrong = {name: told for name, told in wrong.items() if name not in right}
    if wrong:
        parts = "; parts of a batch are for a loss that is a mean over items" if rung.parts > 1 else ""
        complaints.append(f"weights: the gradient of the first step is off: {listed(wrong.values())}{parts}")
    if wanted.by_chance <= found.distances.keys():
        complaints += _of_chance(found, wanted)
    return GradientVerdict(tuple(complaints), tuple(told for name, told in sorted(off.items()) if name not in wrong))


@lru_cache(maxsize=8)
def _allowed(calm: StepSetup, kind: str) -> Mapping[str, float]:
    """How far off the gradient of each weight may be in a type, by name, as a share of its length."""
    wanted, yards = _reference_gradients(calm), _yardstick(calm, kind)
    # What is smaller than the type's rounding of a typical gradient, and all wrong in torch's own, has no right value.
    lost = {name for name, share in wanted.shares.items() if share < _FLOOR[kind] and yards.get(name, 0.0) > MOST}
    least = TIMES * _FLOOR[kind] * math.sqrt(wanted.blocks)
    far = {name: _YARDS * (yards.get(name, 0.0) + wanted.spread[name]) for name in wanted.names - lost}
    return {name: min(MOST, max(least, share)) for name, share in far.items()}


def _missing(names: Collection[str], found: ComparedGradients, moved: Collection[str]) -> Iterator[str]:
    """Complaints about weights without a gradient, and about weights that the step left as they were."""
    if missing := [name for name in names if name not in found.given]:
        yield f"weights: {len(missing)} of {len(names)} had no gradient: {listed(missing)}"
    if still := [name for name in names if name in found.distances and name not in moved]:
        yield f"weights: the first step left {len(still)} of {len(names)} as they were: {listed(still)}"


def _too_far(found: ComparedGradients, wanted: WantedGradients, allowed: Mapping[str, float]) -> dict[str, str]:
    """The weights whose gradient is off, with how far; none that has no gradient, and none that chance decides."""
    off = {name: wanted.kept.share(found.distances, (name,)) for name in found.given & allowed.keys()}
    far = {name for name, share in off.items() if not share <= allowed[name]} - wanted.by_chance
    return {name: f"{name} by {off[name]:.2%}, allowed are {allowed[name]:.2%}" for name in far}


def _of_chance(found: ComparedGradients, wanted: WantedGradients) -> Iterator[str]:
    """A complaint about gradients that chance decides. Of one alone nothing can be said, of many together something."""
    off, allowed = wanted.kept.share(found.distances, wanted.by_chance), max(MOST, _CHANCE * wanted.apart)
    if not off <= allowed:
        yield (
            f"weights: the gradients of {len(wanted.by_chance)} weights, which depend on the step's random numbers, "
            f"are off by {off:.2%} together, allowed are {allowed:.2%}: {listed(wanted.by_chance)}"
        )


@dataclass(frozen=True, slots=True)
class WantedGradients:
    """What the first step's gradients must be.

    names: of the weights whose gradient is more than what rounding makes. shares: how large it is there, over a typical
    one. spread: how far chance puts each. by_chance: the names of those that chance puts too far to be compared each,
    as the noise of a diffusion model does; apart: how far it puts them together. blocks: of the model, at least 1:
    errors of blocks add up like errors of random signs.
    """

    kept: KeptGradients
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
        found, loss = kept(trainer)
        losses, blocks = {"": loss, **trainer.named}, max(1, len(blocks_of(trainer.model)))
        del trainer  # before the next model
        off = [*_by_other_chances(calm, found, {name: (float(one),) for name, one in losses.items()})]
    counts = {name: one.numel() for name, one in found.tensors.items()}
    sizes = {name: math.sqrt(found.squares[name] / count) for name, count in counts.items() if count}
    typical = math.sqrt(sum(found.squares.values()) / max(1, sum(counts.values())))
    shares = {name: size / typical for name, size in sizes.items() if size > FLAT * typical}
    names = frozenset(shares)
    spread = {name: max((found.share(one, (name,)) for one in off), default=0.0) for name in names}
    by_chance = frozenset(name for name in names if _YARDS * spread[name] > MOST)
    apart = max((found.share(one, by_chance) for one in off), default=0.0)
    return WantedGradients(found, names, shares, spread, by_chance, apart, blocks)


def _by_other_chances(
    calm: StepSetup, found: KeptGradients, known: Mapping[str, tuple[float, ...]]
) -> Iterator[Mapping[str, float]]:
    """Squares of how far other chances put gradients; nothing if the loss doesn't depend on chance, on any rank."""
    for chance in range(1, 1 + _CHANCES):
        other, losses = _compared(replace(calm, chance=chance), found)
        if chance == 1 and not _ranks.agreed(_unlike(losses, known), calm.world):
            return
        yield other.distances


def _compared(setup: StepSetup, found: KeptGradients) -> tuple[ComparedGradients, Mapping[str, torch.Tensor]]:
    """The reference's gradients, beside others, and its losses by name. Its model goes with it."""
    trainer = _reference_trainer(setup)
    other, loss = compared(trainer, found)
    return other, {"": loss, **trainer.named}


@lru_cache(maxsize=8)
def _yardstick(calm: StepSetup, kind: str) -> Mapping[str, float]:
    """How far off the gradients of eager torch are that computes in this type, at most of some draws."""
    tf32 = replace(GATHERED, tf32=kind != "float32")
    rung = tf32 if kind in ("float32", "tf32") else replace(tf32, half="own" if kind == calm.half else "other")
    wanted = _reference_gradients(calm)
    far: dict[str, float] = {}
    with math_modes(rung.tf32):
        drawn = Redrawn(StepTrainer(rung, calm))
        for draw in range(_DRAWS):
            found = drawn.compared(wanted.kept, draw and _FLOOR[kind], draw)
            for name in wanted.names & found.distances.keys():
                far[name] = max(far.get(name, 0.0), wanted.kept.share(found.distances, (name,)))
    return far


def listed(names: Iterable[str]) -> str:
    """The first few of some names, and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:_NAMED]) + (f", and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def forget() -> None:
    """Forget all losses and gradients that are kept."""
    for one in (reference_losses, can_be_wide, _reference_gradients, _yardstick, _allowed, _of_compiled):
        one.cache_clear()
