"""Training steps on several devices as variants of an op: who trains alone, and when gradients are averaged.

Every rank has the same weights, and data of its own. The step is the highest rung's of eager torch, or the same
with torch.compile, or as a CUDA graph, which holds its communication too. On one device all ways are one step, so that
only `replicas` is measured there. Variants that are rungs of a ladder have steps of their own, in
DistributedDataParallel; on one device they are the ladder's.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import MODELS
from harness.collection.ops.collectives._collectives import twice_the_rest
from harness.collection.ops.elementwise import BOTH
from harness.collection.ops.process_groups import unsupported_alone
from harness.collection.steps.training import _facts, _timed_step
from harness.collection.steps.training._capture import capture_stream
from harness.collection.steps.training._copies import SharedBuffer
from harness.collection.steps.training._figures import TOKENS
from harness.collection.steps.training._hidden import report_trace
from harness.collection.steps.training._means import BucketMean, Buffer, FlatMean, gathered_mean
from harness.collection.steps.training._ranks import (
    BY_COPIES,
    IN_BUCKETS,
    IN_HALVES,
    OF_RUNGS,
    SHARDED,
    SHARDED_OURS,
    WAYS,
    RankTrainer,
    Way,
)
from harness.collection.steps.training._rungs import (
    AUTOTUNE,
    DEFAULT,
    FLOAT32,
    Rung,
    asked_of,
    cant_cut,
)
from harness.collection.steps.training._settings import (
    forget_compiled,
    math_modes,
    reference_modes,
    seed_of,
)
from harness.collection.steps.training._sharded import ShardedTrainer
from harness.collection.steps.training._steps import ALLOWED, SMALLEST_FALL, STEPS, whole_step_op
from harness.collection.steps.training._trainer import SCALE, Setup, keep_little, whole
from harness.model import Case, Work
from harness.ops import Choice, Context, Launch, Op, Symbols, Tensors

if TYPE_CHECKING:
    import torch

_MODES = {"compile": DEFAULT, "autotune": AUTOTUNE}
_OF_GPUS = {"graph": "a CPU has no CUDA graphs", "autotune": "a CPU has no kernels to try"}
GRADIENT = 4
"""Bytes of a gradient: weights, and so their gradients, are in float32 in mixed precision."""
MEAN_OFF = 0.1
"""How far off the mean of gradients may be, over its norm. Halves that are added up in another order are off by less;
the sum in the place of the mean, and gradients of one rank alone, by far more."""
APART = 1e-9
"""How far off the sums of two ranks' weights may be, relative to their size: they are the same to the last bit."""


def scaling_op(
    name: str,
    summary: str,
    models: Sequence[str],
    ways: Mapping[Way, Rung],
    rungs: Sequence[Rung] = (),
    **fields: Any,
) -> Op:
    """An op whose variants are the ways, each with the step of a rank in it, and `rungs`. fields: more of Op's.

    Its choices come after the choices of the model and of how the step is run.
    """
    choices = {
        "model": Choice("which configuration of harness.collection.models", tuple(models)),
        "step": Choice("how each rank's step is run", ("eager", "compile", "graph", "autotune")),
        **fields.pop("choices", {}),
    }
    pages = "harness.collection.steps.training.report.hidden"
    op = whole_step_op(
        name, summary, choices=choices, make=make, check=check, work=work, recheck=recheck, pages=pages, **fields
    )
    for way, one in ways.items():
        options = _options(one) | {"rows": way.rows, "unsupported": partial(cant_run, way)}
        op.variant(way.name, way.summary, **options)(partial(prepare, way=way, rung=one))
    for one in rungs:
        options = _options(one) | {"rows": one.rows, "unsupported": has_own_step}
        summary = f"{OF_RUNGS.name} with another step: {one.summary}"
        op.variant(one.name, summary, **options)(partial(prepare, way=OF_RUNGS, rung=one))
    return op


def _options(rung: Rung) -> dict[str, Any]:
    """What a variant with the step of a rung has of it. A CPU has none of our kernels."""
    devices = ("cuda",) if rung.role == "ours" else BOTH
    return {"role": rung.role, "devices": devices, "arithmetic": rung.arithmetic}


def cant_run(way: Way, case: Case) -> str | None:
    """Why a case can't be measured in this way; None if it can."""
    step = dict(case.choices)["step"]
    if why := cant_cut(case):
        return why
    if case.device == "cpu" and step in _OF_GPUS:
        return f"{_OF_GPUS[step]}: give step: eager, or compile"
    if way.buckets and step in _MODES:
        return "torch.compile gives all gradients at once, so that no bucket is sent before: give step: eager, or graph"
    return unsupported_alone(case) if way.wrapped or way.synced else None


def has_own_step(case: Case) -> str | None:
    """Why a rung can't run: a rung says itself whether it is compiled, and a CPU has no graph of it."""
    if why := cant_cut(case):
        return why
    step = dict(case.choices)["step"]
    if step == "eager":
        return None
    if step != "graph":
        return f"its rung says how it is compiled, not step={step}: give step: eager, or graph"
    return f"{_OF_GPUS[step]}: give step: eager" if case.device == "cpu" else None


def way_of(variant: str) -> Way:
    """How the ranks of a variant train together."""
    ways = (*WAYS, IN_HALVES, IN_BUCKETS, BY_COPIES, *SHARDED, SHARDED_OURS)
    return next((way for way in ways if way.name == variant), OF_RUNGS)


def work(symbols: Symbols, _itemsize: int, item: str) -> Work:
    """Operations are one device's, as in `_steps.work`; items are all devices'.

    In a ring each device sends nearly twice the bytes of all gradients.
    """
    config, world = MODELS[symbols["model"]], symbols["world"]
    sent = twice_the_rest(config.parameters() * GRADIENT, world) if world > 1 else 0
    flops = 3 * config.flops() * symbols["B"]
    return Work(flops=(("case", flops),), sent=sent, items=world * symbols["B"], item=item)


def make(ctx: Context) -> dict[str, Any]:
    """Room for what is checked: losses of the first steps, all weights' sum after them, the error of the mean before.

    Nothing is declared, as in `_steps.make`.
    """
    import torch

    wide = {"device": ctx.device, "dtype": torch.float64}
    return {
        "losses": torch.zeros(STEPS, device=ctx.device),
        "weights": torch.zeros((), **wide),
        "off": torch.zeros((), **wide),
    }


def prepare(ctx: Context, way: Way, rung: Rung) -> Launch:
    """Make the trainer, and make the first steps, except the steps that are left to the harness.

    Raises RuntimeError where gradients should be copied between hosts.
    """
    if way.copied and ctx.group.local_size < ctx.group.size:
        raise RuntimeError(f"{way.name}: devices can't write the memory of other hosts: measure {IN_BUCKETS.name}")
    gc.collect()  # a model of an earlier case may be in a cycle, and would take the memory of this one
    reference_losses(ctx, way)
    before = _facts.allocated(ctx)
    modes = ExitStack()
    ctx.defer(modes.close)
    modes.enter_context(math_modes(rung.tf32))
    made = make(ctx)
    trainer = trainer_as_asked(ctx, way, rung, made["off"])
    step = trainer.loss_of_step
    if tokens := getattr(MODELS[ctx.s.model], "tokens", 0):
        ctx.report(TOKENS, tokens * ctx.s.B * ctx.group.size)
    numbers = iter(range(STEPS))

    def once(losses: torch.Tensor, weights: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
        """A step, and in the first steps the losses until then, the sum of weights and the mean's error."""
        loss = step()
        if (number := next(numbers, None)) is not None:
            made["losses"][number].copy_(loss)
            losses.copy_(made["losses"])
            weights.copy_(sum_of(trainer.weights))
            off.copy_(made["off"])
        return loss

    def first_steps() -> None:
        nonlocal step
        if ctx.s.step == "graph":
            gc.collect()  # memory that ranks share waits for the device when it is freed, which no capture allows
            step = trainer.as_graph(ranks=ctx.group.size)
        for _ in range(STEPS - 2):
            once(**made)

    _facts.with_memory(ctx, first_steps, before - trainer.uncounted)
    report_later(ctx, way, trainer, step)

    def launch(t: Tensors) -> None:
        t.steps = RankSteps(trainer, once(t.losses, t.weights, t.off))

    return launch


@dataclass(slots=True)
class RankSteps:
    """What the check of a timed step needs. last: the last step's loss, on this rank's data."""

    trainer: RankTrainer
    last: torch.Tensor


def trainer_as_asked(ctx: Context, way: Way, rung: Rung, off: torch.Tensor) -> RankTrainer:
    """The trainer of a rank, with its step run as the case asks. off: where the error of the mean is written."""
    graph = ctx.s.step == "graph"
    rung = replace(rung, graph=graph, compiled=_MODES.get(ctx.s.step, rung.compiled))
    if rung.compiled:
        ctx.defer(forget_compiled)
    with capture_stream() if graph else nullcontext():
        trainer = trainer_of(way, rung, setup_of(ctx), ctx.group.size)
        if way.synced and ctx.group.size > 1:
            off.fill_(trainer.error_of_mean())
        if graph:
            trainer.rehearse()
    return trainer


def trainer_of(way: Way, rung: Rung, setup: Setup, world: int) -> RankTrainer:
    """The trainer of a rank for this way."""
    several = world > 1
    if several and way.sharded:
        return ShardedTrainer(rung, setup, keeps=way.keeps)
    mean = None
    if several and way.synced and not way.wrapped:
        buffer = SharedBuffer if way.copied else Buffer
        mean = BucketMean(setup.device, buffer) if way.buckets else FlatMean(setup.device)
    made = RankTrainer(rung, setup, wrapped=several and way.wrapped, mean=mean)
    if several and way.wrapped and not way.synced:
        made.never_sync()
    if several and way.halves:
        made.send_halves()
    return made


def report_later(ctx: Context, way: Way, trainer: RankTrainer, step: Callable[[], object]) -> None:
    """Have figures of the steps reported after they were timed."""
    if trainer.scaler.is_enabled():
        # An overflow of one rank makes all of them skip a step, so the more ranks, the more steps may be skipped.
        ctx.afterwards(lambda: _facts.report_skipped(ctx, SCALE, trainer.scaler.get_scale()))
    if ctx.device.type == "cuda" and ctx.group.size > 1 and way.synced:
        ctx.afterwards(lambda: report_trace(ctx, step, trainer.copied))


def sum_of(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of all weights in float64."""
    import torch

    return torch.stack([whole(weight.detach().sum(dtype=torch.float64)) for weight in weights]).sum()


def setup_of(ctx: Context) -> Setup:
    """What the training of a rank begins with: the weights of all ranks, data of its own."""
    rank = ctx.group.rank
    seed = (seed_of(ctx) - rank) % 2**32
    return Setup(ctx.s.model, ctx.s.B, seed, ctx.device, ctx.dtype, shard=rank, **asked_of(ctx.case))


# ---- The check.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """A complaint about losses that fall otherwise than the reference's, or weights that aren't the same everywhere."""
    way = way_of(ctx.case.variant)
    # Before any complaint, since all ranks wait for each other here.
    yield from _apart(way, ctx.group.exchange(float(t.weights)), f"{STEPS} steps")
    if not float(t.off) <= MEAN_OFF:
        yield f"gradients: their mean over ranks is off by {float(t.off):.1%} of its norm, allowed are {MEAN_OFF:.0%}"
    wanted = reference_losses(ctx, way)
    fall = wanted[0] - min(wanted)
    if not fall > SMALLEST_FALL * wanted[0]:
        yield f"the reference's losses don't fall, so no step can be judged by them: {_written(wanted)}"
    for number, (got, want) in enumerate(zip(t.losses.tolist(), wanted, strict=True), 1):
        if not abs(got - want) <= ALLOWED * fall:
            yield (
                f"losses: the loss of step {number} is off by {abs(got - want):.3g}, allowed are {ALLOWED * fall:.3g}; "
                f"they are {_written(t.losses.tolist())}, the reference's {_written(wanted)}"
            )


def recheck(ctx: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about a timed step on new batches, one for each rank, and about weights that differ afterwards."""
    found = [*_timed_step.recheck(ctx, t, call)]
    sums = ctx.group.exchange(float(sum_of(t.steps.trainer.weights)))
    yield from _apart(way_of(ctx.case.variant), sums, "the timed steps")
    yield from found


def _apart(way: Way, sums: Sequence[float], after: str) -> Iterator[str]:
    """A complaint about weights that should be the same everywhere. sums: the sum of all weights of each rank."""
    if way.synced and not all(math.isclose(one, sums[0], rel_tol=APART) for one in sums):
        yield f"weights: they differ between ranks after {after}; their sums are {list(sums)}"


def _written(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.3f}" for loss in losses)


def reference_losses(ctx: Context, way: Way) -> tuple[float, ...]:
    """The losses of a rank's first steps in float32 without TF32; in float64 on a CPU, where models are tiny.

    Gradients are averaged by `gathered_mean`, if the way averages them.
    """
    import torch

    dtype = torch.float64 if ctx.device.type == "cpu" else torch.float32
    setup = replace(setup_of(ctx), dtype=dtype, layout="nchw")
    return _reference_losses(setup, way.synced and ctx.group.size > 1)


@cache
def _reference_losses(setup: Setup, synced: bool) -> tuple[float, ...]:
    """They are kept, since several ways of a case are held to them.

    Blocks keep only what enters them, so that this fits into memory where the step does that is held to it.
    """
    import torch

    with reference_modes():
        trainer = RankTrainer(FLOAT32, setup, wrapped=False, mean=gathered_mean if synced else None)
        keep_little(trainer.model)
        return tuple(torch.stack([trainer.loss_of_step() for _ in range(STEPS)]).tolist())
