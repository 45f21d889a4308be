"""A residual connection and the RMSNorm behind it: beyond the texts. Twin of add_rms_norm.cu.

The sum of x and residual is an output, since it goes on as the next residual. rstd is one, since the backward needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.rows import _add_norm as add_norm
from harness.collection.ops.rows import _norm as norm
from harness.model import Traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Symbols, Tensors, compiled_variants


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the outputs must be, by rows."""
    return add_norm.expected(ctx, t)


OP = Op(
    "add_rms_norm",
    "sum = x + residual; y = sum * rstd * gamma for each row, with rstd",
    symbols=norm.SYMBOLS,
    inputs=(norm.X, add_norm.RESIDUAL, norm.GAMMA),
    outputs=(add_norm.SUM, norm.Y, norm.RSTD),
    check=check,
    extremes=norm.EXTREMES,
    items="M",
    item="rows",
)


def _sum_read_again(symbols: Symbols, size: int) -> Traffic:
    """The sum is written, and read again for the norm."""
    matrix = symbols["M"] * symbols["N"] * size
    return Traffic(3 * matrix, 2 * matrix)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.residual, t.gamma, t.sum, t.y, t.rstd


@OP.variant("eager", "an addition, then rms_norm", role="baseline", devices=ANY, returns=True, traffic=_sum_read_again)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: add_norm.added(t.x, t.residual, t.gamma)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(add_norm.added)
    return lambda t: function(t.x, t.residual, t.gamma)


@OP.variant(
    "two_pass", "a block a row, which reads the sum again for y; any length and address", traffic=_sum_read_again
)
def two_pass(ctx: Context) -> Launch:
    """The starting point."""
    return add_norm.two_pass(ctx, _arguments)


@OP.variant(
    "tuned",
    "16 bytes an access; the sum stays in a warp, a block or a cluster, as the row asks for",
    tuning=add_norm.tuning(),
)
def tuned(ctx: Context) -> Launch:
    """`two_pass` runs where rows aren't whole packs or are too long, or packs aren't aligned."""
    return add_norm.planned(ctx, _arguments)
