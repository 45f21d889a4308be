"""Training steps as variants of an op, and the check of them.

The first losses of the steps that are timed must fall as the losses of a plain float32 run do, and each weight must
have had gradients in them. What these gradients must be is checked with a small batch, by `_first_step`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import MODELS, LlamaConfig
from harness.collection.ops.elementwise import BOTH
from harness.collection.steps.training import _facts, _first_step, _float8
from harness.collection.steps.training._figures import TOKENS
from harness.collection.steps.training._rungs import (
    AUTOTUNE,
    CLIP,
    FLOAT32,
    GRAPH,
    STEP,
    UNCLIPPED,
    UNSCALE,
    Float8,
    Rung,
    as_asked,
    asked_of,
    cant_cut,
    clip_of,
)
from harness.collection.steps.training._settings import (
    EAGER,
    forget_compiled,
    math_modes,
    reference_modes,
    seed_of,
    side_stream,
)
from harness.collection.steps.training._timed_step import recheck
from harness.collection.steps.training._trainer import SCALE, Setup, Trainer, keep_little
from harness.model import Case, Work
from harness.ops import Choice, Context, Launch, Op, Symbols, Tensors

if TYPE_CHECKING:
    import torch

STEPS = 10
"""Steps from the first one on whose losses are checked. `prepare` makes all but the last two: the harness calls each
variant once to prepare a case and once to check it."""
ALLOWED = 0.5
"""How far off a loss may be, over what the reference's losses fall by. Dropout and stochastic depth draw other numbers
in each rung, which makes other losses; a step that updates no weight is off by all of it. Losses may also be those of
the reference's step before or behind, and what lies between: where losses rise before they fall, chance says when."""
SMALLEST_FALL = 0.02
"""The fall of the reference's losses, over the first of them, below which nothing could be told apart."""
_FLEX_HEAD = 16
"""Numbers of a head that torch's flex_attention takes at least, where it is compiled for a GPU."""


def whole_step_op(name: str, summary: str, *, size: str, item: str, **fields: Any) -> Op:
    """An op whose call is a whole step, in halves. size: what B is. item: what B counts. fields: more fields of Op."""
    fields = {"dtypes": ("float16", "bfloat16"), **fields, "work": partial(fields["work"], item=item)}
    return Op(name, summary, symbols={"B": size}, timer="steady", **fields)


def training_op(name: str, summary: str, models: Sequence[str], rungs: Iterable[Rung], **fields: Any) -> Op:
    """An op whose variants are the rungs. fields: more fields of Op; its choices come after the choice of a model."""
    choices = {
        "model": Choice("which configuration of harness.collection.models", tuple(models)),
        **fields.pop("choices", {}),
        STEP: Choice("how a step is run: call by call, or as a CUDA graph", ("eager", GRAPH)),
    }
    fields |= {"recheck": recheck, "pages": "harness.collection.steps.training.report"}
    op = whole_step_op(name, summary, choices=choices, make=make, check=check, work=work, **fields)
    for rung in rungs:
        add(op, rung)
    return op


def add(op: Op, rung: Rung) -> None:
    """Add a rung to an op as a variant. A CPU has no CUDA graphs, none of our kernels, and nothing to tune."""
    devices = ("cuda",) if rung.graph or rung.role == "ours" or rung.compiled == AUTOTUNE else BOTH
    options: dict[str, Any] = {"role": rung.role, "rows": rung.rows, "devices": devices}
    options["arithmetic"] = _in_float8 if rung.fp8 else rung.arithmetic
    options["unsupported"] = refusal(rung)
    op.variant(rung.name, rung.summary, **options)(partial(prepare, rung=rung))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What decides which cases of a rung can't run.

    It is a graph, is about unscaling, has gradients in halves, or attention by torch's flex_attention. float8: whose
    products in float8 it has.
    """

    graph: bool
    unscales: bool
    in_halves: bool
    flex: bool
    float8: Float8


def refusal(rung: Rung) -> Callable[[Case], str | None]:
    """The function that says why a case of the rung can't be measured; None if it can."""
    unscales, in_halves = rung.loop or rung.name == UNSCALE.name, rung.adam and rung.half == "pure"
    return _refusal(_Kind(rung.graph, unscales, in_halves, rung.backend == "flex", rung.fp8))


@cache
def _refusal(kind: _Kind) -> Callable[[Case], str | None]:
    """The function that all rungs of a kind share."""
    return partial(_reason, kind)


def _reason(kind: _Kind, case: Case) -> str | None:
    if why := cant_cut(case) or _float8.obstacle(kind.float8):
        return why
    if case.values.get(STEP) == GRAPH and (kind.graph or case.device == "cpu"):
        why = "its step is a graph without that" if kind.graph else "a CPU has no CUDA graphs"
        return f"{why}: leave {STEP}: {GRAPH} out"
    if clip_of(case) is not None and kind.in_halves and case.dtype == "float16":
        return f"a scaler doesn't unscale gradients in float16, which clipping needs: give {CLIP}: {UNCLIPPED}"
    if kind.flex and case.device == "cuda" and (head := _head(case)) < _FLEX_HEAD:
        return f"torch's flex_attention takes heads of {_FLEX_HEAD} numbers and more on a GPU, the model's have {head}"
    return "bfloat16 needs no scaled loss" if kind.unscales and case.dtype != "float16" else None


def _head(case: Case) -> int:
    """Numbers of a head of the case's Llama."""
    config = MODELS[str(case.values["model"])]
    assert isinstance(config, LlamaConfig)
    return config.head


def work(symbols: Symbols, _itemsize: int, item: str) -> Work:
    """Three times the operations of a forward pass: the backward computes two gradients of each product.

    The one that no step needs is counted too, as is usual: the gradient of the input.
    """
    forward = MODELS[symbols["model"]].flops()
    return Work(flops=(("case", 3 * forward * symbols["B"]),), items=symbols["B"], item=item)


def _in_float8(symbols: Symbols, _itemsize: int) -> tuple[tuple[str, int], ...]:
    """The operations of a rung by their types."""
    config = MODELS[symbols["model"]]
    assert isinstance(config, LlamaConfig), f"no rung of {config} is in float8"
    return _float8.flops(config, symbols["B"])


def make(ctx: Context) -> dict[str, Any]:
    """Room for the losses of the first steps, for the check.

    It isn't declared: steps keep model and data themselves, so there is nothing that calls could rotate over.
    """
    import torch

    return {"losses": torch.zeros(STEPS, device=ctx.device)}


@dataclass(slots=True)
class TimedSteps:
    """A rung's steps as the harness calls them. Each of the first steps writes the losses until then, for the check.

    complaints: about the first step of the rung's twin. made: how many steps ended. last: the last step's loss.
    """

    trainer: Trainer
    losses: torch.Tensor
    complaints: tuple[str, ...]
    step: Callable[[], torch.Tensor]
    made: int = 0
    last: torch.Tensor | None = None

    def __call__(self, written: torch.Tensor) -> None:
        """Make a step. written: (STEPS,), the losses of the first steps; 0 for steps that are still to come."""
        self.last = loss = self.step()
        if self.made < STEPS:
            self.losses[self.made].copy_(loss)
            written.copy_(self.losses)
        self.made += 1

    def launch(self, t: Tensors) -> None:
        """What is timed."""
        t.steps = self
        self(t.losses)


def prepare(ctx: Context, rung: Rung) -> Launch:
    """Make the trainer, and make the first steps, except the steps that are left to the harness."""
    gc.collect()  # a model of an earlier case may be in a cycle, and would take the memory of this one
    rung = as_asked(rung, ctx.case)
    # What the rung is held to comes first, so that its memory is free again when the rung's is taken.
    reference_losses(ctx)
    complaints = _first_step.complaints(rung, setup_of(ctx))
    before = _facts.allocated(ctx)
    modes = ExitStack()
    ctx.defer(modes.close)
    modes.enter_context(math_modes(rung.tf32))
    if rung.compiled:
        ctx.defer(forget_compiled)
    trainer = Trainer(rung, setup_of(ctx))
    config = MODELS[ctx.s.model]
    if tokens := getattr(config, "tokens", 0):
        ctx.report(TOKENS, tokens * ctx.s.B)
    losses = make(ctx)["losses"]
    steps = TimedSteps(trainer, losses, complaints, trainer.loss_of_step)

    def first_steps() -> None:
        """All that are left; replays, if the rung has a graph."""
        if rung.graph:
            steps.step = trainer.as_graph()
        while steps.made < STEPS - 2:
            steps(losses)

    with side_stream() if rung.graph else nullcontext():
        for _ in range(EAGER):
            steps(losses)
    _facts.with_memory(ctx, first_steps, before)
    ctx.afterwards(lambda: _facts.report_steps(ctx, steps.step, ctx.s.B))
    if trainer.scaler.is_enabled():
        ctx.afterwards(lambda: _facts.report_skipped(ctx, SCALE, trainer.scaler.get_scale()))
    return steps.launch


def setup_of(ctx: Context) -> Setup:
    """What the trainings of a case begin with."""
    return Setup(ctx.s.model, ctx.s.B, seed_of(ctx), ctx.device, ctx.dtype, **asked_of(ctx.case))


# ---- The check.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """Complaints about the twin's first step, losses that are off by more than `ALLOWED`, and untrained weights."""
    yield from t.steps.complaints
    yield from _of_losses(ctx, t)
    yield from _first_step.untrained(t.steps.trainer, setup_of(ctx))


def _of_losses(ctx: Context, t: Tensors) -> Iterator[str]:
    """How far off losses are is told in terms of what the reference's fall by."""
    wanted = reference_losses(ctx)
    fall = wanted[0] - min(wanted)
    if not fall > SMALLEST_FALL * wanted[0]:
        yield f"the reference's losses don't fall, so no step can be judged by them: {_written(wanted)}"
        return
    losses = t.losses.tolist()
    distances = [abs(got - want) / fall for got, want in zip(losses, wanted, strict=True)]
    if all(map(math.isfinite, distances)):
        ctx.report(_facts.OFF, max(distances))
    for number, got in enumerate(losses):
        distance = _outside(got, wanted[max(0, number - 1) : number + 2]) / fall
        if not distance <= ALLOWED:
            yield (
                f"losses: the loss of step {number + 1} is off by {distance:.0%} of what the reference's losses "
                f"fall by, allowed are {ALLOWED:.0%}; they are {_written(losses)}, "
                f"the reference's {_written(wanted)}"
            )


def _outside(got: float, around: Sequence[float]) -> float:
    """How far a loss lies outside of the range of some losses. NaN for NaN."""
    return abs(got - max(min(around), min(max(around), got)))


def _written(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.3f}" for loss in losses)


def reference_losses(ctx: Context) -> tuple[float, ...]:
    """Losses of the first steps in float32 without TF32, NCHW; in float64 on a CPU, where models are tiny."""
    import torch

    dtype = torch.float64 if ctx.device.type == "cpu" else torch.float32
    return _reference_losses(replace(setup_of(ctx), dtype=dtype, layout="nchw"))


@cache
def _reference_losses(setup: Setup) -> tuple[float, ...]:
    """The reference's losses. They are kept, since every rung of a case is held to them.

    The whole batch is needed: a smaller batch has other losses. Where a rung's training fits into the memory, the
    reference's fits too, though it is in float32, because its blocks keep only what enters them.
    """
    import torch

    with reference_modes():
        trainer = Trainer(FLOAT32, setup)
        keep_little(trainer.model)
        return tuple(torch.stack([trainer.loss_of_step() for _ in range(STEPS)]).tolist())
