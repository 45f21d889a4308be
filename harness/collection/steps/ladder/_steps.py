"""A rung of a user's step made ready, and its checks.

The reference is the step as the file has it, in float32 without TF32; on a CPU in float64, if the model can. A rung's
first losses must fall as the reference's do. A twin of the rung, whose dropout drops nothing as far as modules say
their share, makes one step; the gradient of each weight, as the optimizer saw it, is compared with the reference's. How
far off it may be is measured: as far as torch's autocast, or float32, puts it for this model, and as far as chance puts
it, each times four. A compiled rung's twin is compiled. After the timing the batch is changed in place: the loss of a
timed step must be the loss of its weights for that batch.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder._given import arguments
from harness.collection.steps.ladder._rungs import FLOAT32, LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, batch_of, model_of, tensors_of
from harness.collection.steps.training import _facts
from harness.collection.steps.training._first_step import FLAT, MOST, TIMES
from harness.collection.steps.training._settings import EAGER, forget_compiled, math_modes, seed_of, side_stream
from harness.collection.steps.training._steps import ALLOWED, SMALLEST_FALL, STEPS, TimedSteps
from harness.collection.steps.training._timed_step import DRAWS, OFF, OFF_WITH_BATCH_NORM, SPREADS
from harness.collection.steps.training._trainer import SCALE
from harness.errors import UsageError
from harness.ops import Context, Launch, Tensors

if TYPE_CHECKING:
    import torch

_YARDS = 4.0
"""How far off a gradient may be, over how far torch's own is, and over how far chance puts it."""
_FLOOR = {"float64": 2.0**-12, "float32": 2.0**-12, "tf32": 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The unit in the last place of a type; for float32 what sums over a batch and fast convolutions lose of it."""
_SHARE = 0.01
"""What a loss may be off by besides, over the first loss: what halves round it by."""
_NAMED = 3

Gradients = Mapping[str, "torch.Tensor"]


def prepare(ctx: Context, rung: LadderRung, sheet: StepSheet) -> Launch:
    """Make the trainer, and the first steps but the last two, which are left to the harness.

    Raises UsageError, with a reason in plain words, for a rung that fails.
    """
    gc.collect()
    setup = StepSetup(sheet.source, sheet.size, seed_of(ctx), ctx.device, ctx.case.dtype)
    with told(FLOAT32):
        _reference_losses(setup)
    with told(rung):
        complaints = tuple(_gradient_complaints(rung, setup))
    before = _facts.allocated(ctx)
    modes = ExitStack()
    ctx.defer(modes.close)
    modes.enter_context(math_modes(rung.tf32))
    if rung.compiled:
        ctx.defer(forget_compiled)
    with told(rung):
        return _first_steps(ctx, StepTrainer(rung, setup), complaints, before)


def _first_steps(ctx: Context, trainer: StepTrainer, complaints: tuple[str, ...], before: int) -> Launch:
    import torch

    graph = trainer.rung.graph
    losses = torch.zeros(STEPS, device=ctx.device)
    steps = TimedSteps(trainer, losses, complaints, trainer.loss_of_step)  # type: ignore[arg-type] # it has a trainer's

    def first_steps() -> None:
        if graph:
            steps.step = trainer.as_graph()
        while steps.made < STEPS - 2:
            steps(losses)

    with side_stream() if graph else nullcontext():
        for _ in range(EAGER):
            steps(losses)
    _facts.with_memory(ctx, first_steps, before)
    ctx.afterwards(lambda: _facts.report_steps(ctx, steps.step, ctx.s.B))
    if trainer.scaler.is_enabled():
        ctx.afterwards(lambda: _facts.report_skipped(ctx, SCALE, trainer.scaler.get_scale()))
    return steps.launch


@contextmanager
def told(rung: LadderRung) -> Iterator[None]:
    """Errors of a rung become a UsageError with a reason in plain words.

    Too little memory, and what the device says of itself, stay what they are.
    """
    from torch import OutOfMemoryError

    try:
        yield
    except (OutOfMemoryError, UsageError):
        raise
    except Exception as error:
        said = _first_words(error)
        if "CUDA error" in said or "out of memory" in said:
            raise
        raise UsageError(f"{reason(rung)}: {type(error).__name__}: {said}", _advice(rung)) from error


def _first_words(error: Exception) -> str:
    """The first line of an error, and the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def reason(rung: LadderRung) -> str:
    """What failed, in plain words."""
    told = {
        "the step itself fails, as the file has it": rung == FLOAT32,
        f"{rung.base} can't be captured as a CUDA graph": rung.graph,
        "torch.compile can't compile the model": rung.compiled,
        "the model fails with our kernels": rung.patched,
        f"the backend {rung.attention} can't do the model's attention": rung.attention,
        "the model's linear layers can't be given a second stream": rung.streams,
        "the model fails under autocast": rung.half,
    }
    return next((text for text, holds in told.items() if holds), f"the step fails with {rung.name}")


def _advice(rung: LadderRung) -> str:
    if rung == FLOAT32:
        return "correct the file, and try it first as a program of its own"
    return "only this rung, and the rungs above it that keep it, fail; the other rungs don't need it"


# ---- The reference, and how far off others may be.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """Complaints about the twin's gradients, and about losses."""
    yield from t.steps.complaints
    wanted, spread = _reference_losses(t.steps.trainer.setup)
    got, fall = t.losses.tolist(), wanted[0] - min(wanted)
    allowed = ALLOWED * max(fall, 0.0) + SPREADS * spread + _SHARE * abs(wanted[0])
    off = [abs(one - want) for one, want in zip(got, wanted, strict=True)]
    if fall > SMALLEST_FALL * abs(wanted[0]) and all(map(math.isfinite, off)):
        ctx.report(_facts.OFF, max(off) / fall)
    for number, distance in enumerate(off):
        if not distance <= allowed:
            yield (
                f"losses: the loss of step {number + 1} is {got[number]:.4f}, the reference's is {wanted[number]:.4f}; "
                f"{allowed:.4f} is allowed, by what the reference's losses fall and vary"
            )


@lru_cache(maxsize=2)
def _reference_losses(setup: StepSetup) -> tuple[tuple[float, ...], float]:
    """The reference's losses, and how far chance puts them apart."""
    with math_modes(tf32=False):
        wanted = _losses(setup, STEPS)
        others = _losses(replace(setup, chance=1), STEPS if _draws(setup) else 1)
    return wanted, max(abs(one - other) for one, other in zip(wanted, others, strict=False))


def _losses(setup: StepSetup, count: int) -> tuple[float, ...]:
    import torch

    trainer = _reference_trainer(setup)
    return tuple(torch.stack([trainer.loss_of_step().double() for _ in range(count)]).tolist())


def _draws(setup: StepSetup) -> bool:
    """Whether the loss depends on chance."""
    first, other = (_losses(replace(setup, chance=chance), 1) for chance in (0, 1))
    return first != other


def _reference_trainer(setup: StepSetup) -> StepTrainer:
    return StepTrainer(FLOAT32, replace(setup, wide=_can_be_wide(setup)))


@lru_cache(maxsize=2)
def _can_be_wide(setup: StepSetup) -> bool:
    """Whether the model can be trained in float64 on a CPU; some have float32 written out."""
    if setup.device.type != "cpu":
        return False
    try:
        StepTrainer(FLOAT32, replace(setup, wide=True)).loss_of_step()
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def _gradient_complaints(rung: LadderRung, setup: StepSetup) -> Iterator[str]:
    """What is wrong with the gradients of the rung's twin, and with weights that it left as they were."""
    calm = replace(setup, calm=True)
    wanted = _reference_gradients(calm)
    kind = rung.dtype(setup.half) or rung.arithmetic
    # A graph replays kernels that its twin without a graph launches too.
    twin = replace(rung, name="", summary="", base="", graph=False)
    found, moved = _compiled_gradients(twin, calm) if rung.compiled else _first_gradients(twin, calm)
    names = wanted.names
    missing = [name for name in names if name not in found or not bool(found[name].any())]
    if missing:
        yield f"weights: {len(missing)} of {len(names)} had no gradient: {_listed(missing)}"
    still = [name for name in names if name in found and name not in moved]
    if still:
        yield f"weights: the first step left {len(still)} of {len(names)} as they were: {_listed(still)}"
    yards = _yardstick(calm, kind)
    far = {}
    for name in names - {*missing}:
        allowed = min(MOST, max(TIMES * _FLOOR[kind], _YARDS * (yards.get(name, 0.0) + wanted.spread[name])))
        if not (off := _distance(found[name], wanted.gradients[name])) <= allowed:
            far[name] = f"{name} by {off:.2%}, allowed are {allowed:.2%}"
    if far:
        yield f"weights: the gradient of the first step is off: {_listed([far[name] for name in sorted(far)])}"


@dataclass(frozen=True, slots=True)
class WantedGradients:
    """What the first step's gradients must be: by name, in the host's memory.

    names: of the weights whose gradient is more than what rounding makes. spread: how far chance puts each.
    """

    gradients: Gradients
    names: frozenset[str]
    spread: Mapping[str, float]


@lru_cache(maxsize=1)
def _reference_gradients(calm: StepSetup) -> WantedGradients:
    with math_modes(tf32=False):
        found, _ = _made(_reference_trainer(calm))
        others = _made(_reference_trainer(replace(calm, chance=1)))[0] if _draws(calm) else found
    sizes = {name: float(one.double().norm()) / math.sqrt(one.numel()) for name, one in found.items()}
    count = sum(one.numel() for one in found.values())
    typical = math.sqrt(sum(size**2 * found[name].numel() for name, size in sizes.items()) / max(1, count))
    names = frozenset(name for name, size in sizes.items() if size > FLAT * typical)
    return WantedGradients(found, names, {name: _distance(others[name], found[name]) for name in names})


@lru_cache(maxsize=8)
def _yardstick(calm: StepSetup, kind: str) -> Mapping[str, float]:
    """How far off the gradients of eager torch are that computes in this type."""
    tf32 = replace(FLOAT32, tf32=kind != "float32")
    rung = tf32 if kind in ("float32", "tf32") else replace(tf32, half="own" if kind == calm.half else "other")
    found, _ = _first_gradients(rung, calm)
    wanted = _reference_gradients(calm)
    return {name: _distance(found[name], wanted.gradients[name]) for name in wanted.names & found.keys()}


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
    """The gradients that the optimizer saw in a step, unscaled, and the names of the weights that the step changed."""
    import torch

    seen: dict[str, torch.Tensor] = {}
    named = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad]
    before = {name: one.detach().clone() for name, one in named}
    optimizer = trainer.optimizer

    def see(*_: object) -> None:
        # Torch's fused optimizers unscale gradients themselves.
        scaled = trainer.scaler.is_enabled() and trainer.rung.optimizer == "fused"
        scale = trainer.scaler.get_scale() if scaled else 1.0
        seen.update({name: (one.grad.detach() / scale).cpu() for name, one in named if one.grad is not None})

    hook = optimizer.register_step_pre_hook(see)
    try:
        trainer.loss_of_step()
    finally:
        hook.remove()
    resting = {id(one) for group in optimizer.param_groups if not group.get("lr") for one in group["params"]}
    moved = {name for name, one in named if id(one) in resting or not torch.equal(one, before[name])}
    return seen, frozenset(moved)


def _distance(got: torch.Tensor, want: torch.Tensor) -> float:
    """How far a gradient is from another one, over the length of that."""
    wide = want.double()
    return float((got.double() - wide).norm() / wide.norm())


def _listed(names: list[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:_NAMED]) + (f", and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


# ---- The timed steps.


def recheck(_: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about a timed step on a batch that no step has seen. t.steps: the TimedSteps."""
    import torch

    trainer: StepTrainer = t.steps.trainer
    # Each by places of its own: inputs and targets that are numbers don't fit each other either, so that the loss of a
    # model that has learnt its batch isn't a difference of roundings.
    for places, own in enumerate(_to_change(trainer), 1):
        own.copy_(own.roll(places, 0) if own.shape[0] > 1 else own.flip(-1))
    before = {name: one.detach().clone() for name, one in _state(trainer).items()}
    scale = trainer.scaler.get_scale()
    call()
    got, losses = float(t.steps.last), _losses_of(trainer, before)
    want, spread = float(losses.mean()), float(losses.std())
    has_batch_norm = any("running_mean" in name for name in before)
    share = OFF_WITH_BATCH_NORM if has_batch_norm else OFF
    allowed = share * abs(want) + SPREADS * spread
    if not abs(got - want) <= allowed:
        yield (
            f"losses: a timed step on a new batch has a loss of {got:.4f}; for this batch, and the weights that there "
            f"were, the loss is {want:.4f}, give or take {allowed:.4f}"
        )
    skipped = trainer.scaler.get_scale() < scale
    weights = [name for name, one in trainer.model.named_parameters() if one.requires_grad]
    after = _state(trainer)
    if not skipped and all(torch.equal(before[name], after[name]) for name in weights):
        yield "weights: a timed step changed none of them"


def _to_change(trainer: StepTrainer) -> list[torch.Tensor]:
    """The tensors of a batch whose items change places, so that they no longer fit the others: numbers, if it has any.

    Else the first tensor.
    """
    every = [one for one in tensors_of(trainer.batch) if one.ndim]
    return [one for one in every if one.is_floating_point()] or every[:1]


def _state(trainer: StepTrainer) -> dict[str, torch.Tensor]:
    return {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}


def _losses_of(trainer: StepTrainer, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The losses of the reference's model with this state for the trainer's batch, several times, as chance has it."""
    import torch

    setup = replace(trainer.setup, wide=_can_be_wide(trainer.setup))
    model, batch = model_of(setup), batch_of(setup)
    for own, now in zip(tensors_of(batch), tensors_of(trainer.batch), strict=True):
        own.copy_(now)
    torch.manual_seed(setup.seed + DRAWS)
    found = []
    with torch.no_grad(), math_modes(tf32=False):
        for _ in range(DRAWS):
            for name, one in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
                one.copy_(state[name])
            positional, named = arguments(batch)
            found.append(_loss(trainer, model, positional, named).double())
    return torch.stack(found)


def _loss(trainer: StepTrainer, model: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
    """The loss of a model; of a file with a step of its own the loss of such a step, by an optimizer with no rate."""
    import torch

    given = trainer.setup.given
    if given.step is None:
        loss: torch.Tensor = given.loss(model, *positional, **named)
        return loss
    with torch.enable_grad():
        loss = given.step(model, torch.optim.SGD(model.parameters(), lr=0.0), *positional, **named)
    return loss.detach()
