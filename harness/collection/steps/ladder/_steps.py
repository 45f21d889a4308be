"""A rung of a user's step made ready, and its checks.

The reference is the step as the file has it, in float32 without TF32; on a CPU in float64, if the model can. A rung's
first losses must fall as the reference's do, and the gradients of its first step are compared (`_reference`). After the
timing the batch is changed in place: the loss of a timed step must be the loss of its weights for that batch. Several
ranks must have the same weights after the first steps, and after the timed ones.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder import _compiled, _optimizers, _ranks, _reference, _rungs
from harness.collection.steps.ladder._reference import can_be_wide, gradient_verdict, reference_losses
from harness.collection.steps.ladder._rungs import FLOAT32, LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, of_rank, tensors_of
from harness.collection.steps.training import _facts
from harness.collection.steps.training._capture import capture_stream
from harness.collection.steps.training._hidden import report_trace
from harness.collection.steps.training._ranks import REHEARSED
from harness.collection.steps.training._settings import (
    EAGER,
    forget_compiled,
    math_modes,
    reference_modes,
    seed_of,
    side_stream,
)
from harness.collection.steps.training._steps import ALLOWED, SMALLEST_FALL, STEPS, TimedSteps
from harness.collection.steps.training._timed_step import OFF, OFF_WITH_BATCH_NORM, SPREADS, loss_complaints
from harness.collection.steps.training._trainer import SCALE, whole
from harness.errors import UsageError
from harness.model import Warning
from harness.ops import Context, Launch, Tensors

if TYPE_CHECKING:
    import torch

_OF_DDP = "'DistributedDataParallel' object has no attribute"
_SHARE = 0.01
"""What a loss may be off by besides, over the first loss: what halves round it by."""
_SAME = Warning(
    "same-batch",
    "all ranks have the same batch, so that a mean of their gradients looks like the gradients of one of them",
    "let batch() draw by torch, or choose by the variable RANK",
)


def prepare(ctx: Context, rung: LadderRung, sheet: StepSheet) -> Launch:
    """Make the trainer, and the first steps but the last two, which are left to the harness.

    Raises UsageError, with a reason in plain words, for a rung that fails.
    """
    gc.collect()
    setup = setup_of(ctx, sheet)
    below = partial(lowest_failing, rung, sheet, setup)
    with _ranks.alike(ctx, _reference.forget):
        with told(_reference.GATHERED):
            reference_losses(setup)
        with told(rung, setup.world, below):
            verdict = gradient_verdict(rung, setup)
    if verdict.unsteady:
        ctx.notes.append(_unsteady(verdict.unsteady))
    before = _facts.allocated(ctx)
    modes = ExitStack()
    ctx.defer(modes.close)
    modes.enter_context(math_modes(rung.tf32))
    if rung.compiled:
        ctx.defer(forget_compiled)
    with told(rung, setup.world, below):
        trainer = trainer_of(rung, setup)
    if _ranks.same_batches(ctx, [*tensors_of(trainer.batch)]):
        ctx.notes.append(_SAME)
    with told(rung, setup.world, below):
        return _first_steps(ctx, trainer, verdict.complaints, before)


def _unsteady(weights: Sequence[str]) -> Warning:
    """The warning of gradients that were off once. weights: which, with how far."""
    return Warning(
        "unsteady-gradients",
        f"gradients of {len(weights)} weights were off in the first step, and right when it was made again, so "
        f"something in the step isn't repeatable: {_reference.listed(weights)}",
        "try other backends of attention, by the rungs sdpa_flash, sdpa_efficient and sdpa_cudnn; look for a race in "
        "kernels of your own",
    )


def trainer_of(rung: LadderRung, setup: StepSetup) -> StepTrainer:
    """The trainer; for a graph of several ranks made and rehearsed on the stream of captures."""
    if setup.world == 1 or not rung.graph:
        return StepTrainer(rung, setup)
    with capture_stream():
        trainer = StepTrainer(rung, setup)
        _ranks.rehearse(trainer, REHEARSED)
    return trainer


def setup_of(ctx: Context, sheet: StepSheet) -> StepSetup:
    """What the training of a rank begins with: the weights of all ranks, a batch of its own."""
    rank, world = ctx.group.rank, ctx.group.size
    seed = (seed_of(ctx) - rank) % 2**32
    return of_rank(StepSetup(sheet.source, sheet.size, seed, ctx.device, ctx.case.dtype), sheet, rank, world)


@dataclass(slots=True)
class NamedSteps(TimedSteps):
    """A rung's steps, which keep the first losses that have names, too: a list of tensors for each name."""

    named: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def __call__(self, written: torch.Tensor) -> None:
        """Make a step. written: as in TimedSteps."""
        TimedSteps.__call__(self, written)
        if self.made <= STEPS:
            for name, loss in self.trainer.named.items():  # type: ignore[attr-defined] # it is a StepTrainer
                self.named.setdefault(name, []).append(loss.clone())  # a replay writes the same tensor each time


def _first_steps(ctx: Context, trainer: StepTrainer, complaints: tuple[str, ...], before: int) -> Launch:
    import torch

    graph = trainer.rung.graph
    losses = torch.zeros(STEPS, device=ctx.device)
    steps = NamedSteps(trainer, losses, complaints, trainer.loss_of_step)  # type: ignore[arg-type] # it has a trainer's

    def first_steps() -> None:
        if graph:
            steps.step = trainer.as_graph()
        while steps.made < STEPS - 2:
            steps(losses)

    with side_stream() if graph else nullcontext():
        for _ in range(EAGER):
            steps(losses)
    if trainer.rung.compiled:
        _check_compiled(ctx)
    _facts.with_memory(ctx, first_steps, before)
    ctx.afterwards(lambda: _facts.report_steps(ctx, steps.step, ctx.s.B))
    if ctx.device.type == "cuda" and ctx.group.size > 1:
        ctx.afterwards(lambda: report_trace(ctx, steps.step))
    if trainer.scaler.is_enabled():
        ctx.afterwards(lambda: _facts.report_skipped(ctx, SCALE, trainer.scaler.get_scale()))
    return steps.launch


def _check_compiled(ctx: Context) -> None:
    """Refuse a rung of which torch.compile compiled nothing; warn where it left a part out."""
    if not _compiled.is_compiled():
        raise UsageError(
            "torch.compile compiles nothing of the model, so the step is the one without torch.compile",
            "TORCH_LOGS=graph_breaks,dynamo tells why",
        )
    if reason := _compiled.left_out():
        ctx.notes.append(
            Warning(
                "partly-compiled",
                f"torch.compile left out a part of the model, which runs as without torch.compile: {reason}",
                "TORCH_LOGS=graph_breaks,recompiles tells where and why",
            )
        )


@contextmanager
def told(rung: LadderRung, world: int = 1, below: Callable[[], LadderRung] | None = None) -> Iterator[None]:
    """Errors of a rung on so many ranks become a UsageError with a reason in plain words.

    below: finds the rung that is to blame. Too little memory, and what the device says of itself, stay what they are.
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
        guilty = below() if below else rung
        already = "" if guilty is rung else f"{guilty.name}, which {rung.name} goes on from, fails already: "
        why = reason(FLOAT32 if _OF_DDP in said else guilty, world)
        raise UsageError(f"{already}{why}: {type(error).__name__}: {said}", _advice(guilty, said)) from error


def lowest_failing(rung: LadderRung, sheet: StepSheet, setup: StepSetup) -> LadderRung:
    """The lowest rung that a failed one goes on from and that fails in a step, too; the failed one if none does.

    Compiled rungs aren't tried, since that takes long; on several ranks none is, since all would have to.
    """
    every = {one.name: one for one in _rungs.of_sheet(sheet)}
    bases, one = list[LadderRung](), rung
    while setup.world == 1 and one.base in every:
        one = every[one.base]
        bases.append(one)
    for base in reversed(bases):
        if base.compiled or base.graph:
            continue
        try:
            with math_modes(base.tf32):
                StepTrainer(base, setup).loss_of_step()
        except Exception:  # which is the rung's, too
            return base
    return rung


def _first_words(error: Exception) -> str:
    """The first line of an error, and the next one where the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def reason(rung: LadderRung, world: int = 1) -> str:
    """What failed, in plain words. world: on how many ranks."""
    told = {
        "the step itself fails, as the file has it": (rung == FLOAT32 and world == 1) or rung == _reference.GATHERED,
        "the step fails in DistributedDataParallel": rung == FLOAT32,
        "the model can't be trained in parts, by FSDP2": rung.is_sharded and world > 1 and not rung.graph,
        f"{rung.base} can't be captured as a CUDA graph": rung.graph,
        "torch.compile can't compile the model": rung.compiled,
        "the model fails with our kernels": rung.patched,
        f"the backend {rung.attention} can't do the model's attention": rung.attention,
        f"the batch can't be trained in {rung.parts} parts": rung.parts > 1,
        "the model's linear layers can't be given a second stream": rung.streams,
        f"torch's {rung.optimizer} optimizer can't make the step": rung.name == f"{rung.optimizer}_optimizer",
        "the model fails with channels last": rung.name == "channels_last",
        "the model's blocks can't be computed anew": rung.checkpoint,
        "the model fails under autocast": rung.half,
    }
    found = next((text for text, holds in told.items() if holds), f"the step fails with {rung.name}")
    return f"{found}, on {world} devices" if world > 1 else found


def _advice(rung: LadderRung, said: str) -> str:
    if _OF_DDP in said:
        return "let loss or step call the model alone, model(...): DistributedDataParallel has no more of it"
    if rung in (FLOAT32, _reference.GATHERED):
        return "correct the file, and try it first as a program of its own"
    return "only this rung, and the rungs above it that keep it, fail; the other rungs don't need it"


# ---- The first steps' check.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """Complaints about the twin's gradients, and about losses."""
    # Before any other complaint, since all ranks wait for each other here.
    yield from _ranks.apart(ctx, t.steps.trainer.model, f"{STEPS} steps")
    yield from t.steps.complaints
    for name, (wanted, spread) in reference_losses(t.steps.trainer.setup).items():
        got = t.steps.named.get(name, []) if name else t.losses.unbind()
        if len(got) != len(wanted):
            yield f"losses: {len(got)} of the first {STEPS} steps have a loss {name!r}, which all of the reference have"
            continue
        yield from _of_losses(ctx, name, [float(one) for one in got], wanted, spread)


def _of_losses(ctx: Context, name: str, got: Sequence[float], wanted: Sequence[float], spread: float) -> Iterator[str]:
    """Complaints about the first losses of one name; the main ones have none."""
    fall = wanted[0] - min(wanted)
    allowed = ALLOWED * max(fall, 0.0) + SPREADS * spread + _SHARE * abs(wanted[0])
    off = [abs(one - want) for one, want in zip(got, wanted, strict=True)]
    if not name and fall > SMALLEST_FALL * abs(wanted[0]) and all(map(math.isfinite, off)):
        ctx.report(_facts.OFF, max(off) / fall)
    what = f"the loss {name!r}" if name else "the loss"
    for number, distance in enumerate(off):
        if not distance <= allowed:
            yield (
                f"losses: {what} of step {number + 1} is {got[number]:.4f}, the reference's is {wanted[number]:.4f}; "
                f"{allowed:.4f} is allowed, by what the reference's losses fall and vary"
            )


# ---- The timed steps.


def recheck(ctx: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about a timed step on a batch that no step has seen. t.steps: the TimedSteps."""
    found = [*_of_timed_step(t, call)]
    yield from _ranks.apart(ctx, t.steps.trainer.model, "the timed steps")
    yield from found


def _of_timed_step(t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    import torch

    trainer: StepTrainer = t.steps.trainer
    # Each by places of its own: inputs and targets that are numbers don't fit each other either, so that the loss of a
    # model that has learnt its batch isn't a difference of roundings.
    for places, own in enumerate(_to_change(trainer), 1):
        own.data.copy_(own.roll(places, 0) if own.shape[0] > 1 else own.flip(-1))
    before = {name: one.clone() for name, one in _state(trainer).items()}
    own_step = trainer.setup.given.step is not None
    momenta = [_optimizers.state_of(one, whole) for one in trainer.optimizers] if own_step else []
    scale = trainer.scaler.get_scale()
    call()
    has_batch_norm = any("running_mean" in name for name in before)
    share = OFF_WITH_BATCH_NORM if has_batch_norm else OFF
    yield from loss_complaints(float(t.steps.last), lambda draws: _losses_of(trainer, before, momenta, draws), share)
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
    """Weights and statistics. Ranks put together what they have parts of."""
    every = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}
    return {name: whole(one.detach()) for name, one in every.items()}


def _losses_of(
    trainer: StepTrainer, state: Mapping[str, torch.Tensor], momenta: Sequence[Mapping[str, Any]], draws: int
) -> torch.Tensor:
    """So many losses of the reference's model with this state for the trainer's batch, as chance has it.

    momenta: of a file with a step of its own the states of its optimizers. Such a step is made, since a loss may come
    after an update, as that of a GAN's generator comes after the discriminator's.
    """
    import torch

    alone = replace(trainer.setup, world=1)
    one = StepTrainer(FLOAT32, replace(alone, wide=can_be_wide(trainer.setup)))
    for own, now in zip(tensors_of(one.batch), tensors_of(trainer.batch), strict=True):
        own.data.copy_(now)
    torch.manual_seed(one.setup.seed + draws)
    found = []
    with reference_modes():
        for _ in range(draws):
            with torch.no_grad():
                for name, own in {**dict(one.model.named_parameters()), **dict(one.model.named_buffers())}.items():
                    own.copy_(state[name])
            for optimizer, kept in zip(one.optimizers, momenta, strict=False):
                _optimizers.go_on(optimizer, kept)
            found.append(one.loss_of_batch().double())
    return torch.stack(found)
