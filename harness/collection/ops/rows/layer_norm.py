"""LayerNorm, y = (x - mean) * rstd * gamma + beta by rows: techniques S4 and S13. Twin of layer_norm.cu.

rstd is 1 / sqrt(variance + 1e-5), where the variance is divided by N, not by N - 1. mean and rstd are outputs, since
the backward needs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows._row_tuning import RowParameters
from harness.model import Case
from harness.ops import Compile, Context, Expected, Launch, Op, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_TWO_PASS, _TUNED = norm.traffics(vectors=2, statistics=2)


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the outputs must be, by rows."""
    return norm.forward_expected(ctx, t, norm.layer_normalised)


OP = Op(
    "layer_norm",
    "y = (x - mean) * rstd * gamma + beta for each row, with mean and rstd",
    symbols=norm.SYMBOLS,
    inputs=(norm.X, norm.GAMMA, norm.BETA),
    outputs=(norm.Y, norm.MEAN, norm.RSTD),
    check=check,
    extremes=norm.EXTREMES,
    items="M",
    item="rows",
)


def _layer_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The call inside torch.nn.functional.layer_norm: it also returns the statistics that the backward needs."""
    import torch

    if x.device.type == "cpu":
        # There the statistics have the vectors' type, while on a GPU they are always float32.
        gamma, beta = gamma.float(), beta.float()
    y, mean, rstd = torch.native_layer_norm(x, x.shape[1:], gamma, beta, norm.EPS)
    return y, mean.view(-1), rstd.view(-1)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.beta, t.y, t.mean, t.rstd


@OP.variant("eager", "torch.native_layer_norm, which layer_norm is made of", role="baseline", devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today."""
    return lambda t: _layer_norm(t.x, t.gamma, t.beta)


def _rounds_statistics(case: Case) -> str | None:
    on_cpu = case.device == "cpu" and case.dtype != "float32"
    return "on a CPU Inductor rounds the statistics to the type of x" if on_cpu else None


@compiled_variants(OP, "torch.compile of the same", unsupported=_rounds_statistics)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernel for exactly this shape."""
    function = compiled(_layer_norm)
    return lambda t: function(t.x, t.gamma, t.beta)


@OP.variant(
    "two_pass",
    "a block a row, which reads x for the statistics and again for y; any length and address",
    role="published",
    rows=("S4",),
    traffic=_TWO_PASS,
)
def two_pass(ctx: Context) -> Launch:
    """The starting point."""
    return norm.two_pass(ctx, _arguments)


@OP.variant(
    "registers",
    "x read once, into a register array of constant size",
    role="published",
    rows=("S4", "S13"),
    unsupported=norm.too_long,
)
def registers(ctx: Context) -> Launch:
    """The text's optimisation: all loops over the array are unrolled, so that it is in registers."""
    return norm.in_registers(ctx, _arguments, width=1)


@OP.variant(
    "half2",
    "the same, with two halves an access and a conversion",
    role="published",
    rows=("S4", "S13"),
    unsupported=norm.no_pairs,
)
def half2(ctx: Context) -> Launch:
    """Half as many accesses. `two_pass` runs where pairs aren't aligned."""
    return norm.in_registers(ctx, _arguments, width=2)


@OP.variant(
    "tuned",
    "16 bytes an access; a warp, a block or a cluster a row, as it asks for; long rows in turn",
    rows=("S4", "S13"),
    traffic=_TUNED,
    tuning=RowParameters(vectors=2, turns=True).tuning,
)
def tuned(ctx: Context) -> Launch:
    """Steps 4 and 5 of layer_norm.cu. `two_pass` runs where rows are too long for them or packs aren't aligned."""
    return norm.planned(ctx, _arguments, vectors=2)
