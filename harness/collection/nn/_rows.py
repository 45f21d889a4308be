"""Norms and softmax over the last dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import kernel
from harness.collection.nn._operators import operator
from harness.collection.ops.rows._norm import EPS

_EPSILONS = 1e-20, 1e20
"""The least and the largest epsilon of our kernels, whose sums of squares have a factor of about 1 / (4 N)."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = EPS) -> Tensor:
    """LayerNorm over the last dimension, (x - mean) / sqrt(variance + eps) * weight + bias, as torch's layer_norm.

    x: (..., N); weight, bias: (N,). weight and bias are rounded to the type of x, and so are their gradients; sums are
    in float32. The result has the type of x, also under autocast: halves in, halves out. Torch's autocast computes
    layer_norm in float32 and hands on float32, so a residual that comes after it is float32 there, and in halves here.
    Each eps from 1e-20 on has a kernel of its own, which is compiled when it is first asked for; torch does the rest.
    Raises ValueError where weight or bias isn't (N,), or for integers.
    """
    _fitting(x, weight=weight, bias=bias)
    return _layer_norm(x, weight.to(x.dtype), bias.to(x.dtype), eps)[0]


def rms_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """RMSNorm over the last dimension, x / sqrt(mean(x * x) + eps) * weight. x: (..., N); weight: (N,).

    Types, eps and errors are as in layer_norm().
    """
    _fitting(x, weight=weight)
    return _rms_norm(x, weight.to(x.dtype), eps)[0]


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Divide exp(x) by its sum along `dim`. The result has the type of x, also under autocast.

    Torch does it for other dimensions than the last one. Raises IndexError for a dimension that x doesn't have.
    """
    if dim not in (-1, x.ndim - 1) or not x.ndim or not x.is_floating_point():
        return torch.softmax(x, dim)
    return _softmax(x)


def _fitting(x: Tensor, **vectors: Tensor) -> None:
    if not x.is_floating_point():
        raise ValueError(f"x is of {x.dtype}; norms take floating-point numbers")
    for name, vector in vectors.items():
        if not x.ndim or vector.shape != x.shape[-1:]:
            must = tuple(x.shape[-1:])
            raise ValueError(f"{name} is {tuple(vector.shape)}; for x of {tuple(x.shape)} it must be {must}")


def _matrix(x: Tensor) -> dict[str, int]:
    columns = x.shape[-1]
    return {"M": x.numel() // max(1, columns), "N": columns}


def _statistics(x: Tensor, count: int) -> list[Tensor]:
    """Empty statistics, one a row: float32, or float64 for float64."""
    dtype, rows = torch.float64 if x.dtype == torch.float64 else torch.float32, _matrix(x)["M"]
    return [x.new_empty(rows, dtype=dtype) for _ in range(count)]


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.dtype == torch.float64 else x.float()


def norm_kernel(op: str, x: Tensor, sizes: dict[str, int], eps: float) -> Any:
    """The kernel of a norm with this epsilon; None if there is none."""
    least, most = _EPSILONS
    if not least <= eps <= most:
        return None
    # The catalogue's epsilon needs no macro, so its kernels are the same.
    return kernel(op, x, sizes, macros=None if eps == EPS else {"EPS": f"{float(eps)!r}f"})


# ---- LayerNorm.


def _layer_norm_run(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    launch = norm_kernel("layer_norm", x, _matrix(x), eps)
    if launch is None:
        y, mean, rstd = torch.native_layer_norm(_wide(x), x.shape[-1:], _wide(weight), _wide(bias), eps)
        return y.to(x.dtype), mean.flatten(), rstd.flatten()
    y, mean, rstd = _layer_norm_fake(x, weight, bias, eps)
    launch(x=x.contiguous(), gamma=weight.contiguous(), beta=bias.contiguous(), y=y, mean=mean, rstd=rstd)
    return y, mean, rstd


def _layer_norm_fake(x: Tensor, _weight: Tensor, _bias: Tensor, _eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, rstd = _statistics(x, 2)
    return _like(x), mean, rstd


def _layer_norm_grad_run(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    launch = kernel("layer_norm_grad", x, _matrix(x))
    if launch is None:
        return _layer_norm_grad_by_torch(dy, x, weight, mean, rstd)
    dx, dgamma, dbeta = _layer_norm_grad_fake(dy, x, weight, mean, rstd)
    given = {"dy": dy.contiguous(), "x": x.contiguous(), "gamma": weight.contiguous(), "mean": mean, "rstd": rstd}
    launch(**given, dx=dx, dgamma=dgamma, dbeta=dbeta)
    return dx, dgamma, dbeta


def _layer_norm_grad_by_torch(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (*x.shape[:-1], 1)
    wide, mean, rstd = _wide(dy), mean.view(rows), rstd.view(rows)
    xhat, g = (_wide(x) - mean) * rstd, wide * _wide(weight)
    dx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
    over = tuple(range(x.ndim - 1))
    sums = _sum(wide * xhat, over), _sum(wide, over)
    return dx.to(x.dtype).contiguous(), sums[0].to(x.dtype), sums[1].to(x.dtype)


def _sum(x: Tensor, over: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions; torch takes none of them for all."""
    return x.sum(over) if over else x.clone()


def _layer_norm_grad_fake(
    _dy: Tensor, x: Tensor, weight: Tensor, _mean: Tensor, _rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(x), _like(weight), _like(weight)


def _layer_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.mark_non_differentiable(mean, rstd)


def _layer_norm_backward(ctx: Any, dy: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Any, ...]:
    return *_layer_norm_grad(dy, *ctx.saved_tensors), None


_layer_norm = operator(
    "layer_norm",
    "(Tensor x, Tensor weight, Tensor bias, float eps) -> (Tensor, Tensor, Tensor)",
    _layer_norm_run,
    _layer_norm_fake,
    _layer_norm_saves,
    _layer_norm_backward,
)
_layer_norm_grad = operator(
    "layer_norm_grad",
    "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> (Tensor, Tensor, Tensor)",
    _layer_norm_grad_run,
    _layer_norm_grad_fake,
)


# ---- RMSNorm.


def _rms_norm_run(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    launch = norm_kernel("rms_norm", x, _matrix(x), eps)
    if launch is None:
        wide = _wide(x)
        rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
        return (wide * rstd * _wide(weight)).to(x.dtype).contiguous(), rstd.flatten()
    y, rstd = _rms_norm_fake(x, weight, eps)
    launch(x=x.contiguous(), gamma=weight.contiguous(), y=y, rstd=rstd)
    return y, rstd


def _rms_norm_fake(x: Tensor, _weight: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    return _like(x), *_statistics(x, 1)


def _rms_norm_grad_run(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    launch = kernel("rms_norm_grad", x, _matrix(x))
    if launch is None:
        wide, of_row = _wide(dy), rstd.view(*x.shape[:-1], 1)
        xhat, g = _wide(x) * of_row, wide * _wide(weight)
        dx = of_row * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        return dx.to(x.dtype).contiguous(), _sum(wide * xhat, tuple(range(x.ndim - 1))).to(x.dtype)
    dx, dgamma = _rms_norm_grad_fake(dy, x, weight, rstd)
    given = {"dy": dy.contiguous(), "x": x.contiguous(), "gamma": weight.contiguous(), "rstd": rstd}
    launch(**given, dx=dx, dgamma=dgamma)
    return dx, dgamma


def _rms_norm_grad_fake(_dy: Tensor, x: Tensor, weight: Tensor, _rstd: Tensor) -> tuple[Tensor, Tensor]:
    return _like(x), _like(weight)


def _rms_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def _rms_norm_backward(ctx: Any, dy: Tensor, _rstd: Tensor) -> tuple[Any, ...]:
    return *_rms_norm_grad(dy, *ctx.saved_tensors), None


_rms_norm = operator(
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    _rms_norm_run,
    _rms_norm_fake,
    _rms_norm_saves,
    _rms_norm_backward,
)
_rms_norm_grad = operator(
    "rms_norm_grad",
    "(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    _rms_norm_grad_run,
    _rms_norm_grad_fake,
)


# ---- Softmax.


def _softmax_run(x: Tensor) -> Tensor:
    launch = kernel("softmax", x, _matrix(x))
    if launch is None:
        return functional.softmax(_wide(x), -1).to(x.dtype).contiguous()
    y = _like(x)
    launch(x=x.contiguous(), y=y)
    return y


def _softmax_grad_run(dy: Tensor, y: Tensor) -> Tensor:
    launch = kernel("softmax_grad", y, _matrix(y))
    if launch is None:
        wide, of_y = _wide(dy), _wide(y)
        return (of_y * (wide - (wide * of_y).sum(-1, keepdim=True))).to(y.dtype).contiguous()
    dx = _like(y)
    launch(dy=dy.contiguous(), y=y.contiguous(), dx=dx)
    return dx


def _softmax_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, dy: Tensor) -> Tensor:
    return _softmax_grad(dy, *ctx.saved_tensors)


_softmax = operator("softmax", "(Tensor x) -> Tensor", _softmax_run, _like, _softmax_saves, _softmax_backward)
_softmax_grad = operator("softmax_grad", "(Tensor dy, Tensor y) -> Tensor", _softmax_grad_run, lambda _, y: _like(y))
