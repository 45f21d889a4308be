"""RMSNorm, y = x * rstd * gamma by rows: beyond the texts. Twin of rms_norm.cu.

rstd is 1 / sqrt(mean(x * x) + 1e-5). It is an output, since the backward needs it. (torch's default in place of 1e-5
is the type's epsilon, but models choose their own.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows._row_tuning import RowParameters
from harness.ops import Compile, Context, Expected, Launch, Op, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_TWO_PASS, _TUNED = norm.traffics(vectors=1, statistics=1)


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the outputs must be, by rows."""
    return norm.forward_expected(ctx, t, norm.rms_normalised)


OP = Op(
    "rms_norm",
    "y = x * rstd * gamma for each row, with rstd",
    symbols=norm.SYMBOLS,
    inputs=(norm.X, norm.GAMMA),
    outputs=(norm.Y, norm.RSTD),
    check=check,
    extremes=norm.EXTREMES,
    items="M",
    item="rows",
)


def _rms_norm(x: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The call inside torch.nn.functional.rms_norm: it also returns rstd, which the backward needs."""
    import torch

    y, rstd = torch.ops.aten._fused_rms_norm(x, x.shape[1:], gamma, norm.EPS)
    return y, rstd.view(-1)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.y, t.rstd


@OP.variant("eager", "torch's fused kernel, which rms_norm is made of", role="baseline", devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: _rms_norm(t.x, t.gamma)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(_rms_norm)
    return lambda t: function(t.x, t.gamma)


@OP.variant(
    "two_pass",
    "a block a row, which reads x for rstd and again for y; any length and address",
    traffic=_TWO_PASS,
)
def two_pass(ctx: Context) -> Launch:
    """The starting point."""
    return norm.two_pass(ctx, _arguments)


@OP.variant("registers", "x read once, into a register array of constant size", unsupported=norm.too_long)
def registers(ctx: Context) -> Launch:
    """All loops over the array are unrolled, so that it is in registers."""
    return norm.in_registers(ctx, _arguments, width=1)


@OP.variant("half2", "the same, with two halves an access and a conversion", unsupported=norm.no_pairs)
def half2(ctx: Context) -> Launch:
    """Half as many accesses. `two_pass` runs where pairs aren't aligned."""
    return norm.in_registers(ctx, _arguments, width=2)


@OP.variant(
    "tuned",
    "16 bytes an access; a warp, a block or a cluster a row, as it asks for",
    traffic=_TUNED,
    tuning=RowParameters(vectors=1).tuning,
)
def tuned(ctx: Context) -> Launch:
    """Step 4 of rms_norm.cu. `two_pass` runs where rows are too long for it or packs aren't aligned."""
    return norm.planned(ctx, _arguments, vectors=1)
