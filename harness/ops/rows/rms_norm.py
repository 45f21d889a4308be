"""RMSNorm, y = x * rstd * gamma by rows: beyond the texts. Twin of rms_norm.cu.

rstd is 1 / sqrt(mean(x * x) + 1e-5), and is kept for the backward. (torch's default in place of 1e-5 is the type's
epsilon; models say what they want.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.ops import Context, Launch, Op, Tensors
from harness.ops._baselines import compiled
from harness.ops._elementwise import BOTH
from harness.ops.rows import _norm as norm

if TYPE_CHECKING:
    import torch

FLOPS = 4  # an element
_TWO_PASS, _TUNED = norm.traffics(vectors=1, statistics=1, flops=FLOPS)


def check(ctx: Context, t: Tensors) -> str | None:
    """What is wrong with the outputs."""
    return norm.forward_complaint(ctx, t, norm.rms_normalised)


OP = Op(
    "rms_norm",
    "y = x * rstd * gamma for each row, with rstd",
    symbols=norm.SYMBOLS,
    inputs=(norm.X, norm.GAMMA),
    outputs=(norm.Y, norm.RSTD),
    check=check,
    flops=f"{FLOPS} * M * N",
    items="M",
    item="rows",
)


def _rms_norm(x: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What torch.nn.functional.rms_norm calls, which keeps rstd for the backward."""
    import torch

    y, rstd = torch.ops.aten._fused_rms_norm(x, x.shape[1:], gamma, norm.EPS)
    return y, rstd.view(-1)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.y, t.rstd


@OP.variant("eager", "torch's fused kernel, which rms_norm is made of", devices=BOTH, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: _rms_norm(t.x, t.gamma)


@OP.variant("compile", "torch.compile of the same", devices=BOTH, returns=True)
def compile_(_: Context) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(_rms_norm)
    return lambda t: function(t.x, t.gamma)


@OP.variant(
    "two_pass",
    "a block a row, which reads x for rstd and again for y; any length and address",
    traffic=_TWO_PASS,
)
def two_pass(ctx: Context) -> Launch:
    """One kernel, and the starting point."""
    return norm.two_pass(ctx, _arguments)


@OP.variant("registers", "x read once, into a register array of constant size", unsupported=norm.too_long)
def registers(ctx: Context) -> Launch:
    """Loops that are unrolled to the last, so that the array is in registers."""
    return norm.in_registers(ctx, _arguments, width=1)


@OP.variant("half2", "the same, with two halves an access and a conversion", unsupported=norm.no_pairs)
def half2(ctx: Context) -> Launch:
    """Half as many accesses; `two_pass` where pairs aren't aligned."""
    return norm.in_registers(ctx, _arguments, width=2)


@OP.variant("tuned", "16 bytes an access; a warp, a block or a cluster a row, as it asks for", traffic=_TUNED)
def tuned(ctx: Context) -> Launch:
    """See rms_norm.cu. Falls back to `two_pass` for rows too long for that, and packs that aren't aligned."""
    return norm.planned(ctx, _arguments)
