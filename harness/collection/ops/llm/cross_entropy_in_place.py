"""Cross-entropy's losses, and its gradient in place of the logits: beyond the texts. Twin of cross_entropy_in_place.cu.

valid is an input, since the logits may be of a part of a batch, whose mean is over all of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.llm import _cross_entropy as shared
from harness.collection.ops.rows._rows import has_plan
from harness.model import Traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_FLOAT = 4  # bytes


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What losses and logits must be; see cross_entropy and cross_entropy_grad."""
    import torch

    before, unit = t.before, torch.finfo(ctx.dtype)
    factor = 1 / before.valid.double()
    for part in shared.parts(ctx):
        logits, targets = before.logits[part], before.targets[part]
        losses, _ = shared.row_losses(logits, targets)
        yield Expected("losses", t.losses[part], losses, 2**-19 * (1 + losses.abs()), part.start, loose=True)
        # By the logarithms: lse has no place for the sum beside a logit that is very large.
        logs = torch.log_softmax(logits.double(), 1)
        want = shared.gradient(logs, targets, logs.new_zeros(len(logs)), factor)
        size = want.abs() + torch.where(want < 0, 2 * factor, 0.0)
        lost = 2**-19 * (1 + logs.abs().clamp(max=128))
        allowed = lost * size + unit.eps / 2 * want.abs() + unit.tiny * unit.eps + 2**-126
        yield Expected("logits", t.logits[part], want, allowed, part.start * ctx.s.V, loose=True)


OP = Op(
    "cross_entropy_in_place",
    "losses = lse - x[target]; x = (exp(x - lse) - onehot(target)) / valid",
    symbols=shared.SYMBOLS,
    inputs=(replace(shared.LOGITS, inplace=True), shared.TARGETS, shared.VALID),
    outputs=(Tensor("losses", ("M",), "float32"),),
    make=shared.make,
    check=check,
    extremes=shared.extremes("valid"),
    items="M",
    item="rows",
)


def _steps(logits: torch.Tensor, targets: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses, and the gradient in the type of the logits."""
    import torch

    logs = torch.log_softmax(logits.float(), 1)
    losses = torch.nn.functional.nll_loss(logs, targets, ignore_index=shared.IGNORED, reduction="none")
    zeros = logs.new_zeros(len(logs))
    return losses, shared.gradient(logs, targets, zeros, 1 / valid).to(logits.dtype)


def _by_torch(symbols: Symbols, size: int) -> Traffic:
    """In float32: logits, their logarithms, three steps of the gradient; the gradient's rounding, and a copy."""
    elements = symbols["M"] * symbols["V"]
    return Traffic(elements * (2 * size + 6 * _FLOAT), elements * (5 * _FLOAT + 2 * size))


def _written_over(function: Any) -> Launch:
    def launch(t: Tensors) -> None:
        losses, gradient = function(t.logits, t.targets, t.valid)
        t.losses.copy_(losses)
        t.logits.copy_(gradient)

    return launch


@OP.variant("eager", "single steps, in float32", role="baseline", devices=ANY, traffic=_by_torch)
def eager(_: Context) -> Launch:
    """What a user writes today in place of two passes by autograd."""
    return _written_over(_steps)


@compiled_variants(OP, "torch.compile of the same", returns=False)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape, and a copy."""
    return _written_over(compiled(_steps))


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.logits, t.targets, t.valid, t.losses


def _second_read(symbols: Symbols, size: int) -> Traffic:
    """Two reads of the logits."""
    matrix = symbols["M"] * symbols["V"] * size
    return Traffic(2 * matrix, matrix)


def _tuned(symbols: Symbols, size: int) -> Traffic:
    """One read where a plan keeps rows in registers."""
    matrix = symbols["M"] * symbols["V"] * size
    plans = {"M": symbols["M"], "N": symbols["V"]}
    return Traffic(matrix, matrix) if has_plan(plans, size) else _second_read(symbols, size)


@OP.variant("two_pass", "a block a row, which reads it again; any length and address", traffic=_second_read)
def two_pass(ctx: Context) -> Launch:
    """The starting point."""
    return shared.any_length(ctx, "two_pass", _arguments)


@OP.variant(
    "tuned", "one read: a row in the registers of a warp, a block or a cluster", traffic=_tuned, tuning=shared.TUNING
)
def tuned(ctx: Context) -> Launch:
    """`two_pass` runs where rows are too long for registers, or logits don't begin on 16 bytes."""
    return shared.planned(ctx, _arguments, two_pass(ctx))
