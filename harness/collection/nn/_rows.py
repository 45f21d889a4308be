"""Norms and softmax over the last dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import Described, KernelLaunch, OpKernels, allocator, like
from harness.collection.nn._operators import operator, without_autocast
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
    dtype, must = x.dtype, x.shape[-1:]
    if weight.shape != must or bias.shape != must or not dtype.is_floating_point or not must:
        raise _misfit(x, weight=weight, bias=bias)
    if (weight.dtype != dtype or bias.dtype != dtype) and not _rounded_by_kernel(x, weight, bias):
        weight, bias = weight.to(dtype), bias.to(dtype)
    return _layer_norm(x, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    """RMSNorm over the last dimension, x / sqrt(mean(x * x) + eps) * weight. x: (..., N); weight: (N,).

    Types, eps and errors are as in layer_norm().
    """
    dtype, must = x.dtype, x.shape[-1:]
    if weight.shape != must or not dtype.is_floating_point or not must:
        raise _misfit(x, weight=weight)
    if weight.dtype != dtype and not _rounded_by_kernel(x, weight):
        weight = weight.to(dtype)
    return _rms_norm(x, weight, eps)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Divide exp(x) by its sum along `dim`. The result has the type of x, also under autocast.

    Torch does it for other dimensions than the last one. Raises IndexError for a dimension that x doesn't have.
    """
    if (dim != -1 and dim != x.ndim - 1) or not x.dtype.is_floating_point or not x.ndim:
        return torch.softmax(x, dim)
    return _softmax(x)


def _rounded_by_kernel(x: Tensor, *vectors: Tensor) -> bool:
    """Whether vectors may stay in float32, though x is in halves: a kernel rounds them. A compiler does it better."""
    halves = x.dtype in (torch.float16, torch.bfloat16) and all(vector.dtype == torch.float32 for vector in vectors)
    return halves and x.is_cuda and not torch.compiler.is_compiling()


def _misfit(x: Tensor, **vectors: Tensor) -> ValueError:
    if not x.is_floating_point():
        return ValueError(f"x is of {x.dtype}; norms take floating-point numbers")
    must = tuple(x.shape[-1:])
    name, found = next(
        (name, tuple(vector.shape)) for name, vector in vectors.items() if not must or tuple(vector.shape) != must
    )
    return ValueError(f"{name} is {found}; for x of {tuple(x.shape)} it must be {must}")


def matrix(x: Tensor) -> Described:
    """The call of a kernel for the rows of x."""
    columns = x.shape[-1]
    return Described({"M": x.numel() // max(1, columns), "N": columns})


def with_epsilon(call: Described, eps: float) -> Described:
    """The call of a norm's kernel with this epsilon."""
    # The catalogue's epsilon needs no macro, so its kernels are the same.
    return call if eps == EPS else replace(call, macros={"EPS": f"{float(eps)!r}f"})


def norm_kernel(kernels: OpKernels, x: Tensor, eps: float, *options: Any) -> KernelLaunch | None:
    """The kernel of a norm with this epsilon; None if there is none. options: what decides besides x and eps."""
    least, most = _EPSILONS
    return kernels(x, eps, *options) if least <= eps <= most else None


def _norms(op: str) -> OpKernels:
    return OpKernels(op, lambda x, eps, _type_of_vectors: with_epsilon(matrix(x), eps))


def _grads(op: str) -> OpKernels:
    return OpKernels(op, lambda x, _type_of_vectors: matrix(x))


def _outputs(x: Tensor, statistics: int) -> list[Tensor]:
    """Room for y, and for statistics of each row: float32, or float64 for float64. x: contiguous."""
    new, shape, dtype = allocator(x), tuple(x.shape), x.dtype
    rows = x.numel() // shape[-1] if shape[-1] else 0
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return [new(shape, x.stride(), dtype), *[new((rows,), (1,), wide) for _ in range(statistics)]]


def _wide(x: Tensor) -> Tensor:
    return x.double() if x.dtype == torch.float64 else x.float()


# ---- LayerNorm.


_layer_norms, _layer_norm_grads = _norms("layer_norm"), _grads("layer_norm_grad")


def _layer_norm_run(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    launch = norm_kernel(_layer_norms, x, eps, weight.dtype)
    if launch is None:
        return _layer_norm_by_torch(x, weight.to(x.dtype), bias.to(x.dtype), eps)
    x = x.contiguous()
    y, mean, rstd = _outputs(x, 2)
    launch(x, weight.contiguous(), bias.contiguous(), y, mean, rstd)
    return y, mean, rstd


@without_autocast
def _layer_norm_by_torch(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = torch.native_layer_norm(_wide(x), x.shape[-1:], _wide(weight), _wide(bias), eps)
    return y.to(x.dtype), mean.flatten(), rstd.flatten()


def _layer_norm_fake(x: Tensor, _weight: Tensor, _bias: Tensor, _eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = _outputs(x.contiguous(), 2)
    return y, mean, rstd


def _layer_norm_grad_run(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    launch = _layer_norm_grads(x, weight.dtype)
    if launch is None:
        return _layer_norm_grad_by_torch(dy, x, weight, mean, rstd)
    x, weight = x.contiguous(), weight.contiguous()
    dx, dgamma, dbeta = like(x), like(weight), like(weight)
    launch(dy.contiguous(), x, weight, mean, rstd, dx, dgamma, dbeta)
    return dx, dgamma, dbeta


@without_autocast
def _layer_norm_grad_by_torch(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows = (*x.shape[:-1], 1)
    wide, mean, rstd = _wide(dy), mean.view(rows), rstd.view(rows)
    xhat, g = (_wide(x) - mean) * rstd, wide * _wide(weight.to(x.dtype))
    dx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
    over = tuple(range(x.ndim - 1))
    sums = _sum(wide * xhat, over), _sum(wide, over)
    dgamma, dbeta = (one.to(x.dtype).to(weight.dtype) for one in sums)
    return dx.to(x.dtype).contiguous(), dgamma, dbeta


def _sum(x: Tensor, over: tuple[int, ...]) -> Tensor:
    """The sum over some dimensions; torch takes none of them for all."""
    return x.sum(over) if over else x.clone()


def _layer_norm_grad_fake(
    _dy: Tensor, x: Tensor, weight: Tensor, _mean: Tensor, _rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return like(x), like(weight), like(weight)


def _layer_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, _ = inputs
    _, mean, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)


def _layer_norm_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
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


_rms_norms, _rms_norm_grads = _norms("rms_norm"), _grads("rms_norm_grad")


def _rms_norm_run(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    launch = norm_kernel(_rms_norms, x, eps, weight.dtype)
    if launch is None:
        return _rms_norm_by_torch(x, weight.to(x.dtype), eps)
    x = x.contiguous()
    y, rstd = _outputs(x, 1)
    launch(x, weight.contiguous(), y, rstd)
    return y, rstd


@without_autocast
def _rms_norm_by_torch(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    wide = _wide(x)
    rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * rstd * _wide(weight)).to(x.dtype).contiguous(), rstd.flatten()


def _rms_norm_fake(x: Tensor, _weight: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    y, rstd = _outputs(x.contiguous(), 1)
    return y, rstd


def _rms_norm_grad_run(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    launch = _rms_norm_grads(x, weight.dtype)
    if launch is None:
        return _rms_norm_grad_by_torch(dy, x, weight, rstd)
    x, weight = x.contiguous(), weight.contiguous()
    dx, dgamma = like(x), like(weight)
    launch(dy.contiguous(), x, weight, rstd, dx, dgamma)
    return dx, dgamma


@without_autocast
def _rms_norm_grad_by_torch(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    wide, of_row = _wide(dy), rstd.view(*x.shape[:-1], 1)
    xhat, g = _wide(x) * of_row, wide * _wide(weight.to(x.dtype))
    dx = of_row * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dgamma = _sum(wide * xhat, tuple(range(x.ndim - 1)))
    return dx.to(x.dtype).contiguous(), dgamma.to(x.dtype).to(weight.dtype)


def _rms_norm_grad_fake(_dy: Tensor, x: Tensor, weight: Tensor, _rstd: Tensor) -> tuple[Tensor, Tensor]:
    return like(x), like(weight)


def _rms_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def _rms_norm_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
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


_softmaxes, _softmax_grads = OpKernels("softmax", matrix), OpKernels("softmax_grad", matrix)


def _softmax_run(x: Tensor) -> Tensor:
    launch = _softmaxes(x)
    if launch is None:
        return _softmax_by_torch(x)
    x = x.contiguous()
    y = like(x)
    launch(x, y)
    return y


@without_autocast
def _softmax_by_torch(x: Tensor) -> Tensor:
    return functional.softmax(_wide(x), -1).to(x.dtype).contiguous()


def _softmax_grad_run(dy: Tensor, y: Tensor) -> Tensor:
    launch = _softmax_grads(y)
    if launch is None:
        return _softmax_grad_by_torch(dy, y)
    y = y.contiguous()
    dx = like(y)
    launch(dy.contiguous(), y, dx)
    return dx


@without_autocast
def _softmax_grad_by_torch(dy: Tensor, y: Tensor) -> Tensor:
    wide, of_y = _wide(dy), _wide(y)
    return (of_y * (wide - (wide * of_y).sum(-1, keepdim=True))).to(y.dtype).contiguous()


def _softmax_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, dy: Tensor) -> Tensor:
    return _softmax_grad(dy, *ctx.saved_tensors)


_softmax = operator("softmax", "(Tensor x) -> Tensor", _softmax_run, like, _softmax_saves, _softmax_backward)
_softmax_grad = operator("softmax_grad", "(Tensor dy, Tensor y) -> Tensor", _softmax_grad_run, lambda _, y: like(y))
