"""LayerNorm, y = (x - mean) * rstd * gamma + beta by rows: rows S4 and S13. Twin of layer_norm.cu.

rstd is 1 / sqrt(variance + 1e-5), of the variance over N (not N - 1). mean and rstd are kept, for the backward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.ops import ITEMSIZE, Context, Launch, Op, Tensors
from harness.ops._baselines import compiled
from harness.ops._device import Device
from harness.ops._elementwise import BOTH
from harness.ops.rows import _norm as norm
from harness.ops.rows._norm_plan import InTurn

if TYPE_CHECKING:
    import torch

FLOPS = 8  # an element
_TWO_PASS, _TUNED = norm.traffics(vectors=2, statistics=2, flops=FLOPS)


def check(ctx: Context, t: Tensors) -> str | None:
    """What is wrong with the outputs."""
    return norm.forward_complaint(ctx, t, norm.layer_normalised)


OP = Op(
    "layer_norm",
    "y = (x - mean) * rstd * gamma + beta for each row, with mean and rstd",
    symbols=norm.SYMBOLS,
    inputs=(norm.X, norm.GAMMA, norm.BETA),
    outputs=(norm.Y, norm.MEAN, norm.RSTD),
    check=check,
    flops=f"{FLOPS} * M * N",
    items="M",
    item="rows",
)


def _layer_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What torch.nn.functional.layer_norm calls, which keeps the statistics for the backward."""
    import torch

    y, mean, rstd = torch.native_layer_norm(x, x.shape[1:], gamma, beta, norm.EPS)
    return y, mean.view(-1), rstd.view(-1)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.beta, t.y, t.mean, t.rstd


@OP.variant("eager", "torch.native_layer_norm, which layer_norm is made of", devices=BOTH, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today. On a CPU the statistics have x's type."""
    return lambda t: _layer_norm(t.x, t.gamma, t.beta)


@OP.variant("compile", "torch.compile of the same", devices=BOTH, returns=True)
def compile_(_: Context) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(_layer_norm)
    return lambda t: function(t.x, t.gamma, t.beta)


@OP.variant(
    "two_pass",
    "a block a row, which reads x for the statistics and again for y; any length and address",
    rows=("S4",),
    traffic=_TWO_PASS,
)
def two_pass(ctx: Context) -> Launch:
    """One kernel, and the starting point."""
    return norm.two_pass(ctx, _arguments)


@OP.variant(
    "registers", "x read once, into a register array of constant size", rows=("S4", "S13"), unsupported=norm.too_long
)
def registers(ctx: Context) -> Launch:
    """The text's optimisation: loops that are unrolled to the last, so that the array is in registers."""
    return norm.in_registers(ctx, _arguments, width=1)


@OP.variant(
    "half2", "the same, with two halves an access and a conversion", rows=("S4", "S13"), unsupported=norm.no_pairs
)
def half2(ctx: Context) -> Launch:
    """Half as many accesses; `two_pass` where pairs aren't aligned."""
    return norm.in_registers(ctx, _arguments, width=2)


@OP.variant(
    "tuned",
    "16 bytes an access; a warp, a block or a cluster a row, as it asks for; long rows in turn",
    rows=("S4", "S13"),
    traffic=_TUNED,
)
def tuned(ctx: Context) -> Launch:
    """See layer_norm.cu. Falls back to `two_pass` for rows too long for that, and packs that aren't aligned."""
    plan = InTurn.of(ctx.s.M, ctx.s.N, ITEMSIZE[ctx.case.dtype], Device.current())
    return norm.in_turn(ctx, plan, _arguments) if plan else norm.planned(ctx, _arguments)
