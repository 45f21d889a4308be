"""Training steps as variants of an op, and the check of them: losses that fall as those of a plain float32 run do."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from harness import metrics
from harness.model import Work
from harness.models import MODELS
from harness.ops._elementwise import BOTH
from harness.ops.sheet import Choice, Context, Launch, Op, Symbols, Tensors
from harness.ops.training import _facts
from harness.ops.training._rungs import AUTOTUNE, FLOAT32, Rung
from harness.ops.training._settings import captured, forget_compiled, math_modes, seed_of, side_stream
from harness.ops.training._trainer import Setup, Trainer

if TYPE_CHECKING:
    import torch

STEPS = 10
"""Steps from the first one on whose losses are checked. `prepare` makes all but the last two: the harness calls each
variant once to prepare a case and once to check it."""
EAGER = 3
"""Steps before a graph is captured or memory is counted: they allocate the optimizer's state and choose kernels."""
ALLOWED = 0.25
"""How far off a loss may be, over what the reference's losses fall by. Halves and dropout make other losses; a step
that updates no weight is off by all of it."""
SMALLEST_FALL = 0.02
"""The fall of the reference's losses, over the first of them, below which nothing could be told apart."""


def training_op(name: str, summary: str, models: Sequence[str], rungs: Iterable[Rung], **fields: Any) -> Op:
    """An op whose variants are the rungs. fields: further ones of Op; its choices come after the choice of a model."""
    choices = {"model": Choice("which configuration of harness.models", tuple(models)), **fields.pop("choices", {})}
    op = Op(
        name,
        summary,
        symbols={"B": fields.pop("size")},
        choices=choices,
        dtypes=("float16", "bfloat16"),
        make=make,
        check=check,
        work=partial(work, item=fields.pop("item")),
        timer="steady",
        **fields,
    )
    for rung in rungs:
        add(op, rung)
    return op


def add(op: Op, rung: Rung) -> None:
    """Add a rung to an op as a variant. A CPU has no CUDA graphs, none of our kernels, and nothing to tune."""
    devices = ("cuda",) if rung.graph or rung.role == "ours" or rung.compiled == AUTOTUNE else BOTH
    options: dict[str, Any] = {"role": rung.role, "rows": rung.rows, "devices": devices}
    if rung.loop or rung.name == "unscale":
        options["unsupported"] = lambda case: None if case.dtype == "float16" else "bfloat16 needs no scaled loss"
    op.variant(rung.name, rung.summary, **options)(partial(prepare, rung=rung))


def work(symbols: Symbols, _itemsize: int, item: str) -> Work:
    """Three times the operations of a forward pass: the backward computes two gradients of each product.

    The one that no step needs is counted too, as is usual: the gradient of the input.
    """
    forward = MODELS[symbols["model"]].flops()
    return Work(flops=(("case", 3 * forward * symbols["B"]),), items=symbols["B"], item=item)


def make(ctx: Context) -> dict[str, Any]:
    """Room for the losses of the first steps, for the check.

    It isn't declared: steps keep model and data themselves, so there is nothing that calls could rotate over.
    """
    import torch

    return {"losses": torch.zeros(STEPS, device=ctx.device)}


def prepare(ctx: Context, rung: Rung) -> Launch:
    """Make the trainer, and all of the first steps but those that are left to the harness."""
    gc.collect()  # a model of an earlier case may be in a cycle, and would take the memory of this one
    # The reference comes first, so that its memory is free again when the rung's is taken.
    reference_losses(ctx)
    modes = ExitStack()
    ctx.defer(modes.close)
    modes.enter_context(math_modes(rung.tf32))
    if rung.compiled:
        ctx.defer(forget_compiled)
    trainer = Trainer(rung, setup_of(ctx))
    config = MODELS[ctx.s.model]
    if tokens := getattr(config, "tokens", 0):
        ctx.report(metrics.TOKENS, tokens * ctx.s.B)
    losses = make(ctx)["losses"]
    numbers = iter(range(STEPS))

    def once(step: Callable[[], torch.Tensor], written: torch.Tensor) -> None:
        """A step, and while the first ones last, the losses until then."""
        loss = step()
        if (number := next(numbers, None)) is not None:
            losses[number].copy_(loss)
            written.copy_(losses)

    def first_steps() -> Callable[[], torch.Tensor]:
        """The step that goes on after the first ones: a replay, if the rung has a graph."""
        step = captured(trainer.loss_of_step) if rung.graph else trainer.loss_of_step
        for _ in range(STEPS - 2 - EAGER):
            once(step, losses)
        return step

    with side_stream() if rung.graph else nullcontext():
        for _ in range(EAGER):
            once(trainer.loss_of_step, losses)
    step = _facts.with_memory(ctx, first_steps)
    ctx.defer(lambda: _facts.report_energy(ctx, step, ctx.s.B))
    return lambda t: once(step, t.losses)


def setup_of(ctx: Context) -> Setup:
    """What the trainings of a case begin with."""
    layout = str(ctx.case.values.get("layout", "nchw"))
    return Setup(ctx.s.model, ctx.s.B, seed_of(ctx), ctx.device, ctx.dtype, layout)


# ---- The check.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """A complaint about the first loss that is further off than `ALLOWED`, in terms of the reference's fall."""
    wanted = reference_losses(ctx)
    fall = wanted[0] - min(wanted)
    if not fall > SMALLEST_FALL * wanted[0]:
        yield f"the reference's losses don't fall, so no step can be judged by them: {_written(wanted)}"
        return
    distances = [abs(got - want) / fall for got, want in zip(t.losses.tolist(), wanted, strict=True)]
    if all(map(math.isfinite, distances)):
        ctx.report(_facts.OFF, max(distances))
    for number, distance in enumerate(distances):
        if not distance <= ALLOWED:
            yield (
                f"losses: that of step {number + 1} is off by {distance:.0%} of what the reference's losses fall by, "
                f"allowed are {ALLOWED:.0%}; they are {_written(t.losses.tolist())}, the reference's {_written(wanted)}"
            )


def _written(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.3f}" for loss in losses)


def reference_losses(ctx: Context) -> tuple[float, ...]:
    """Losses of the first steps in float32 without TF32, NCHW; in float64 on a CPU, where models are tiny."""
    import torch

    dtype = torch.float64 if ctx.device.type == "cpu" else torch.float32
    return _reference_losses(replace(setup_of(ctx), dtype=dtype, layout="nchw"))


@cache
def _reference_losses(setup: Setup) -> tuple[float, ...]:
    """They are kept, since every rung of a case is held to them."""
    import torch

    with math_modes(tf32=False):
        trainer = Trainer(FLOAT32, setup)
        return tuple(torch.stack([trainer.loss_of_step() for _ in range(STEPS)]).tolist())
