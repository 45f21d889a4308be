"""The backward of LayerNorm over the rows of a matrix: technique S4. Twin of layer_norm_grad.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.rows import _norm_grad as grad
from harness.collection.ops.rows import _norm_grad_check as exact
from harness.collection.ops.rows._norm import GAMMA, MEAN, RSTD, SYMBOLS, X, layer_normalised
from harness.collection.ops.rows._norm_grad_tuning import NormGradParameters
from harness.ops import Compile, Context, Launch, Op, compiled_variants

if TYPE_CHECKING:
    import torch


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers, and the statistics of x."""
    return exact.make(ctx, layer_normalised)


OP = Op(
    "layer_norm_grad",
    "dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma; dgamma = sum(dy * xhat); dbeta = sum(dy)",
    symbols=SYMBOLS,
    inputs=(grad.DY, X, GAMMA, MEAN, RSTD),
    outputs=(grad.DX, grad.DGAMMA, grad.DBETA),
    reference=exact.reference,
    make=make,
    check=exact.check,
    extremes=exact.extremes("mean", "rstd"),
    items="M",
    item="rows",
)


def _backward(
    dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The op that autograd runs for torch.nn.functional.layer_norm.

    gamma stands for beta, whose values torch doesn't use. On a CPU torch rounds sums of columns to the dtype at each
    step, so halves are widened to floats first.
    """
    import torch

    a_row = mean[:, None], rstd[:, None]
    given = (dy, x, gamma) if x.is_cuda else (dy.float(), x.float(), gamma.float())
    grads = torch.ops.aten.native_layer_norm_backward(
        *given[:2], x.shape[1:], *a_row, given[2], given[2], [True, True, True]
    )
    return tuple(made.to(x.dtype) for made in grads)


@OP.variant("eager", "what autograd calls", role="baseline", devices=ANY, returns=True, traffic=grad.traffic(dy=2, x=2))
def eager(_: Context) -> Launch:
    """One kernel for dx, another one for the sums of columns; both read dy and x."""
    return lambda t: _backward(t.dy, t.x, t.gamma, t.mean, t.rstd)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes kernels of its own. They read dy and x once or more often, which depends on the shape."""
    function = compiled(_backward)
    return lambda t: function(t.dy, t.x, t.gamma, t.mean, t.rstd)


@OP.variant(
    "separate",
    "a kernel each for dx, dgamma and dbeta",
    role="published",
    rows=("S4",),
    traffic=grad.traffic(dy=3, x=2),
    unsupported=grad.too_long,
)
def separate(ctx: Context) -> Launch:
    """The starting point."""
    return grad.separate(ctx)


@OP.variant(
    "fused",
    "one read of dy and x, by blocks that add up columns row after row",
    role="published",
    rows=("S4",),
    unsupported=grad.too_long_for_registers,
)
def fused(ctx: Context) -> Launch:
    """The text's fused kernel."""
    return grad.fused(ctx)


@OP.variant(
    "tuned",
    "tiles of rows in shared memory, ahead of the work; teams that fit the row",
    rows=("S4",),
    traffic=grad.tuned_traffic(sums=2),
    unsupported=grad.too_long,
    tuning=NormGradParameters(sums=2).tuning,
)
def tuned(ctx: Context) -> Launch:
    """Steps 3 to 5 of layer_norm_grad.cu."""
    return grad.tuned(ctx)
