"""Cross-entropy, the mean over rows of lse - x[target]: beyond the texts. Twin of cross_entropy.cu.

lse and how many rows count are outputs, since the backward needs them. A row whose target is -100 doesn't count. Where
no row counts, the loss is NaN, as torch's is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY, aligned
from harness.collection.ops.llm import _cross_entropy as shared
from harness.collection.ops.llm._cross_entropy_plan import TUNING, grid, macros
from harness.model import Traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Plan, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

LOSS = Tensor("loss", (1,), "float32")
LSE = Tensor("lse", ("M",), "float32")
_FLOAT = 4  # bytes


def make(ctx: Context) -> dict[str, Any]:
    """Logits and targets."""
    made = shared.make(ctx)
    return {name: made[name] for name in ("logits", "targets")}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the outputs must be. Each lse is as exact as float32 at its size; so is the mean of the losses.

    An infinite logit makes an infinity or NaN of lse, which depends on the order of the operations.
    """
    import torch

    total, count = (
        torch.zeros((), dtype=torch.float64, device=t.lse.device),
        torch.zeros((), dtype=torch.int64, device=t.lse.device),
    )
    for part in shared.parts(ctx):
        targets = t.before.targets[part]
        losses, lse = shared.row_losses(t.before.logits[part], targets)
        yield Expected("lse", t.lse[part], lse, 2**-21 * (1 + lse.abs()), part.start, loose=True)
        total, count = total + losses.sum(), count + (targets != shared.IGNORED).sum()
    yield Expected("valid", t.valid, count.double().view(1))
    loss = (total / count).view(1)
    yield Expected("loss", t.loss, loss, 2**-19 * (1 + loss.abs()), loose=True)


OP = Op(
    "cross_entropy",
    "loss = mean of lse - x[target] over the rows that count, with lse",
    symbols=shared.SYMBOLS,
    inputs=(shared.LOGITS, shared.TARGETS),
    outputs=(LOSS, LSE, shared.VALID),
    make=make,
    check=check,
    extremes=shared.extremes(),
    items="M",
    item="rows",
)


def _by_torch(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What transformers does: the logits in float32, then torch's cross_entropy, which is these two calls."""
    import torch

    logs = torch.log_softmax(logits.float(), 1)
    loss, valid = torch.ops.aten.nll_loss_forward(logs, targets, None, 1, shared.IGNORED)
    return loss.view(1), logs, valid.view(1)


def _lse_of(_: Context, t: Tensors) -> dict[str, Any]:
    """The lse of each row from the logarithms of its softmax: every finite logit gives it."""
    distances = t.logits.float() - t.logs
    return {"lse": distances.nan_to_num(nan=-float("inf")).amax(1)}


def _logarithms(symbols: Symbols, size: int) -> Traffic:
    """Logits in float32, if they aren't, and the logarithms of the softmax."""
    elements = symbols["M"] * symbols["V"]
    converted = 0 if size == _FLOAT else 1
    return Traffic(elements * (converted * size + _FLOAT), elements * (converted + 1) * _FLOAT)


@OP.variant(
    "eager",
    "float32, log_softmax, nll_loss; the logarithms are kept in place of lse",
    role="baseline",
    devices=ANY,
    returns=True,
    outputs=(LOSS, Tensor("logs", ("M", "V"), "float32", kept=True), shared.VALID),
    decode=_lse_of,
    traffic=_logarithms,
)
def eager(_: Context) -> Launch:
    """What a user writes today; the backward needs the logarithms of the softmax."""
    return lambda t: _by_torch(t.logits, t.targets)


def _steps(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same, and lse: a compiler makes no tensor of the logarithms."""
    import torch

    wide = logits.float()
    loss = torch.nn.functional.cross_entropy(wide, targets, ignore_index=shared.IGNORED)
    valid = (targets != shared.IGNORED).sum().float()
    return loss.view(1), torch.logsumexp(wide, 1), valid.view(1)


@compiled_variants(OP, "torch.compile of cross_entropy and logsumexp")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape."""
    function = compiled(_steps)
    return lambda t: function(t.logits, t.targets)


def _losses(ctx: Context) -> torch.Tensor:
    """Memory for the losses of rows, which all sets of buffers share."""
    import torch

    return torch.empty(ctx.s.M, dtype=torch.float32, device=ctx.device)


@OP.variant("online", "a block a row, one element an access; any length and address")
def online(ctx: Context) -> Launch:
    """The starting point."""
    losses = _losses(ctx)
    return _with_mean(ctx, losses, shared.any_length(ctx, "online", lambda t: (t.logits, t.targets, losses, t.lse)))


@OP.variant(
    "tuned",
    "lanes, a block or a cluster a row, which keep nothing of it; 16 bytes an access, several under way in a thread",
    tuning=TUNING,
)
def tuned(ctx: Context) -> Launch:
    """`online` runs where logits don't begin on 16 bytes, or 32 bits are too few for the sizes."""
    losses, plan = _losses(ctx), ctx.plan()

    def tensors(t: Tensors) -> tuple[torch.Tensor, ...]:
        return t.logits, t.targets, losses, t.lse

    fallback = shared.any_length(ctx, "online", tensors)
    return _with_mean(ctx, losses, _streamed(ctx, plan, tensors, fallback) if plan else fallback)


def _streamed(ctx: Context, plan: Plan, tensors: shared.Arguments, fallback: Launch) -> Launch:
    """The kernel `tuned`, which takes rows of any length whose matrix begins on 16 bytes."""
    kernel, threads = shared.kernel(ctx, "tuned", **macros(ctx.case, plan)), int(plan["threads"])
    sizes, cluster = (ctypes.c_uint32(ctx.s.M), ctypes.c_uint32(ctx.s.V)), int(plan["cluster"])
    started, together = grid(ctx.case, plan), cluster if cluster > 1 else None

    def launch(t: Tensors) -> None:
        if aligned(t.logits):
            kernel(started, threads, *tensors(t), *sizes, cluster=together)
        else:
            fallback(t)

    return launch


def _with_mean(ctx: Context, losses: torch.Tensor, rows: Launch) -> Launch:
    """The losses of rows, then their mean."""
    mean, count = shared.kernel(ctx, "mean"), ctypes.c_int64(ctx.s.M)

    def launch(t: Tensors) -> None:
        rows(t)
        mean(1, 1024, losses, t.targets, t.loss, t.valid, count)

    return launch
