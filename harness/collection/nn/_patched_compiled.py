"""Norms and softmax of a patched model while a compiler reads it: what of them is torch's there, and what is ours.

A compiler fuses torch's operations with what makes their input, such as the addition of a residual or of a mask, and
with the cast of what they give. It can't look into our operators, so that each of these has a pass over memory of its
own. In float32, which a residual stream has under autocast, this took longer than our kernels saved
(reports/h200/ladder_vit in revision 8dcf5490). So the forward is torch's there. The backward of a norm is ours, since
one kernel makes the sums over rows and over columns. It works in halves, which the gradient of what the norm gives has
anyway. Where the input is in halves, it was made by an operator of ours as a rule, such as bias_dropout_residual: there
is nothing to fuse, so the forward is ours, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn import _rows, _softmax
from harness.collection.nn._operators import is_for_torch

_AUTOCAST = ("cpu", "cuda")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Compute nn.layer_norm(). In a compiled model the gradient of a float32 x under autocast is made of halves."""
    halves = _halves_for(x, weight, bias)
    return _rows.layer_norm(x, weight, bias, eps) if halves is None else _LayerNorm.apply(x, weight, bias, eps, halves)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute nn.rms_norm(). In a compiled model the gradient of a float32 x under autocast is made of halves."""
    halves = _halves_for(x, weight)
    return _rows.rms_norm(x, weight, eps) if halves is None else _RMSNorm.apply(x, weight, eps, halves)


def softmax(x: Tensor, dim: int) -> Tensor:
    """Compute nn.softmax(). In a compiled model torch computes that of a float32 x under autocast."""
    return _softmax.softmax(x, dim) if _halves_for(x) is None else functional.softmax(x, dim)


def autocast_halves(device: str) -> torch.dtype | None:
    """The type of autocast on a kind of device, which is one of halves; None where it is off, or there is none."""
    # Asked of other devices, torch raises where it has no autocast. Its question for that stops the compiler of 2.11.
    return torch.get_autocast_dtype(device) if device in _AUTOCAST and torch.is_autocast_enabled(device) else None


def _halves_for(x: Tensor, *vectors: Tensor) -> torch.dtype | None:
    """The type of autocast, if the forward is to be torch's; None if it is to be ours."""
    if not torch.compiler.is_compiling() or is_for_torch((x, *vectors)):
        return None
    fits = x.ndim and all(one.dtype == torch.float32 for one in (x, *vectors))
    fits = fits and all(vector.shape == x.shape[-1:] for vector in vectors)
    return autocast_halves(x.device.type) if fits else None  # ours says what doesn't fit


class _LayerNorm(torch.autograd.Function):
    """LayerNorm of a float32 x, of which the rows less their means, over their deviations, are kept in halves."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917 - what a norm is made of
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, halves: torch.dtype
    ) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
        ctx.save_for_backward(((x - mean) * rstd).to(halves), weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        xhat, weight, rstd = ctx.saved_tensors
        # Our operator has the rows of this norm for its x: their mean is 0, and their deviation 1.
        mean, ones = torch.zeros_like(rstd).flatten(), torch.ones_like(rstd).flatten()
        dx, dweight, dbias = _rows._layer_norm_grad(dy.to(xhat.dtype), xhat, weight, mean, ones)
        return dx * rstd, dweight, dbias, None, None


class _RMSNorm(torch.autograd.Function):
    """RMSNorm of a float32 x, of which the rows over their deviations are kept in halves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, halves: torch.dtype) -> Tensor:
        rstd = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        xhat = x * rstd
        ctx.save_for_backward(xhat.to(halves), weight, rstd)
        return xhat * weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        xhat, weight, rstd = ctx.saved_tensors
        dx, dweight = _rows._rms_norm_grad(dy.to(xhat.dtype), xhat, weight, torch.ones_like(rstd).flatten())
        return dx * rstd, dweight, None, None
