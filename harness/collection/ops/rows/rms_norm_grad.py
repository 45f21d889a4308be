"""The backward of RMSNorm over the rows of a matrix: beyond the texts. Twin of rms_norm_grad.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.rows import _norm_grad as grad
from harness.collection.ops.rows import _norm_grad_check as exact
from harness.collection.ops.rows._norm import GAMMA, RSTD, SYMBOLS, X, rms_normalised
from harness.collection.ops.rows._norm_grad_tuning import NormGradParameters
from harness.ops import Compile, Context, Launch, Op, compiled_variants

if TYPE_CHECKING:
    import torch


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers, and the rstd of x."""
    return exact.make(ctx, rms_normalised)


OP = Op(
    "rms_norm_grad",
    "dx = rstd * (g - xhat * mean(g * xhat)) with g = dy * gamma; dgamma = sum(dy * xhat)",
    symbols=SYMBOLS,
    inputs=(grad.DY, X, GAMMA, RSTD),
    outputs=(grad.DX, grad.DGAMMA),
    reference=exact.reference,
    make=make,
    check=exact.check,
    extremes=exact.extremes("rstd"),
    items="M",
    item="rows",
)


def _steps(
    dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The backward in single operations, in float32."""
    wide, of_row = dy.float(), rstd[:, None]
    xhat, g = x.float() * of_row, wide * gamma.float()
    dx = of_row * (g - xhat * (g * xhat).mean(1, keepdim=True))
    return dx.to(x.dtype), (wide * xhat).sum(0).to(x.dtype)


def _backward(
    dy: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op that autograd runs for torch.nn.functional.rms_norm; single steps on a CPU, where torch has no such op."""
    import torch

    if not x.is_cuda:
        return _steps(dy, x, gamma, rstd)
    dx, dgamma = torch.ops.aten._fused_rms_norm_backward(dy, x, x.shape[1:], rstd[:, None], gamma, [True] * 2)
    return dx, dgamma


@OP.variant("eager", "what autograd calls", role="baseline", devices=ANY, returns=True, traffic=grad.traffic(dy=2, x=2))
def eager(_: Context) -> Launch:
    """One kernel for dx, another one for the sums of columns; both read dy and x."""
    return lambda t: _backward(t.dy, t.x, t.gamma, t.rstd)


@compiled_variants(OP, "torch.compile of its steps")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels read dy and x once or more often, which depends on the shape."""
    function = compiled(_steps)
    return lambda t: function(t.dy, t.x, t.gamma, t.rstd)


@OP.variant("separate", "a kernel each for dx and dgamma", traffic=grad.traffic(dy=2, x=2), unsupported=grad.too_long)
def separate(ctx: Context) -> Launch:
    """The starting point."""
    return grad.separate(ctx)


@OP.variant(
    "fused",
    "one read of dy and x, by blocks that add up columns row after row",
    unsupported=grad.too_long_for_registers,
)
def fused(ctx: Context) -> Launch:
    """The kernel of layer_norm_grad's `fused`, without the mean."""
    return grad.fused(ctx)


@OP.variant(
    "tuned",
    "tiles of rows in shared memory, ahead of the work; teams that fit the row",
    traffic=grad.tuned_traffic(sums=1),
    unsupported=grad.too_long,
    tuning=NormGradParameters(sums=1).tuning,
)
def tuned(ctx: Context) -> Launch:
    """Steps 3 to 5 of layer_norm_grad.cu."""
    return grad.tuned(ctx)
