"""Norms over the last dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import Described, KernelLaunch, OpKernels, allocator, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.ops.rows._norm import EPS
from harness.collection.ops.rows.layer_norm import OP as LAYER_NORM
from harness.collection.ops.rows.layer_norm_grad import OP as LAYER_NORM_GRAD
from harness.collection.ops.rows.rms_norm import OP as RMS_NORM
from harness.collection.ops.rows.rms_norm_grad import OP as RMS_NORM_GRAD
from harness.ops import Op

_EPSILONS = 1e-20, 1e20
"""The least and the largest epsilon of our kernels, whose sums of squares have a factor of about 1 / (4 N)."""


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = EPS,
    normalized_shape: int | Sequence[int] | None = None,
) -> Tensor:
    """LayerNorm over the last dimension, (x - mean) / sqrt(variance + eps) * weight + bias, as torch's layer_norm.

    x: (..., N); weight, bias: (N,). weight and bias are rounded to the type of x, and so are their gradients; sums are
    in float32. The result has the type of x, also under autocast: halves in, halves out. Torch's autocast computes
    layer_norm in float32 and hands on float32, so a residual that comes after it is float32 there, and in halves here.
    normalized_shape: the last dimensions of x, if there are more than one; weight and bias have this shape then.
    Torch's function has it as its second argument. Without weight or without bias, torch computes the norm.
    Each eps from 1e-20 on has a kernel of its own, which is compiled when it is first asked for; torch does the rest.
    Raises ValueError where weight or bias isn't (N,), or for integers; TypeError for a shape in place of the weight.

    >>> x = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    >>> nn.layer_norm(x, weight=torch.ones(2), bias=torch.zeros(2), eps=1e-12)
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """
    dtype, must = x.dtype, x.shape[-1:]
    if weight is None or bias is None or normalized_shape is not None:
        return _layer_norm_of(x, weight, bias, eps, normalized_shape)
    try:
        fits = weight.shape == must and bias.shape == must and dtype.is_floating_point and must
    except AttributeError:
        fits = None
    if not fits:
        raise _misfit(x, weight=weight, bias=bias)
    if (weight.dtype != dtype or bias.dtype != dtype) and not _rounded_by_kernel(x, weight, bias):
        weight, bias = weight.to(dtype), bias.to(dtype)
    return _layer_norm(x, weight, bias, eps)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = EPS,
    normalized_shape: int | Sequence[int] | None = None,
) -> Tensor:
    """RMSNorm over the last dimension, x / sqrt(mean(x * x) + eps) * weight. x: (..., N); weight: (N,).

    eps: None is the epsilon of float32, or of float64 for float64, as torch's rms_norm has it by default.
    Types, normalized_shape and errors are as in layer_norm(). Without weight, torch computes the norm.

    >>> nn.rms_norm(torch.tensor([[3.0, 3.0, 3.0]]), weight=torch.tensor([1.0, 2.0, 3.0]), eps=0.0)
    tensor([[1., 2., 3.]])
    """
    dtype, must = x.dtype, x.shape[-1:]
    if eps is None:
        eps = torch.finfo(_wide_type(x)).eps
    if weight is None or normalized_shape is not None:
        return _rms_norm_of(x, weight, eps, normalized_shape)
    try:
        fits = weight.shape == must and dtype.is_floating_point and must
    except AttributeError:
        fits = None
    if not fits:
        raise _misfit(x, weight=weight)
    if weight.dtype != dtype and not _rounded_by_kernel(x, weight):
        weight = weight.to(dtype)
    return _rms_norm(x, weight, eps)


def _rounded_by_kernel(x: Tensor, *vectors: Tensor) -> bool:
    """Whether vectors may stay in float32, though x is in halves: a kernel rounds them. A compiler does it better."""
    halves = x.dtype in (torch.float16, torch.bfloat16) and all(vector.dtype == torch.float32 for vector in vectors)
    return halves and x.is_cuda and not torch.compiler.is_compiling()


def _shape(weight: Tensor) -> torch.Size:
    """The shape of a weight."""
    try:
        return weight.shape
    except AttributeError:
        raise TypeError(
            f"the weight is {weight!r}; norms of harness.nn take x, the weight and the bias first: give a shape as "
            "normalized_shape=..., or none for the last dimension"
        ) from None


def _misfit(x: Tensor, must: Sequence[int] | None = None, **vectors: Tensor | None) -> ValueError:
    if not x.is_floating_point():
        return ValueError(f"x is of {x.dtype}; norms take floating-point numbers")
    must = tuple(x.shape[-1:] if must is None else must)
    if not x.ndim:
        return ValueError("x has no dimension; norms take (..., N)")
    if not must or tuple(x.shape[-len(must) :]) != must:
        return ValueError(f"normalized_shape is {must}; it must be the last dimensions of x, which is {tuple(x.shape)}")
    found = {name: tuple(_shape(vector)) for name, vector in vectors.items() if vector is not None}
    name, shape = next((name, shape) for name, shape in found.items() if shape != must)
    return ValueError(f"{name} is {shape}; for x of {tuple(x.shape)} it must be {must}")


def _normalized(x: Tensor, shape: int | Sequence[int] | None, **vectors: Tensor | None) -> tuple[int, ...]:
    """The dimensions that a norm is over. Raises ValueError if x or the vectors don't have them."""
    must = (shape,) if isinstance(shape, int) else tuple(x.shape[-1:] if shape is None else shape)
    fits = bool(must) and tuple(x.shape[-len(must) :]) == must and x.is_floating_point()
    if not fits or any(vector is not None and tuple(_shape(vector)) != must for vector in vectors.values()):
        raise _misfit(x, must, **vectors)
    return must


def _layer_norm_of(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, shape: int | Sequence[int] | None
) -> Tensor:
    """Compute layer_norm() over several dimensions, or without weight or bias."""
    must = _normalized(x, shape, weight=weight, bias=bias)
    if weight is None or bias is None:
        return _layer_norm_formula(x, weight, bias, eps, must)
    if len(must) == 1:
        return layer_norm(x, weight, bias, eps)
    return layer_norm(x.flatten(-len(must)), weight.flatten(), bias.flatten(), eps).view(x.shape)


def _rms_norm_of(x: Tensor, weight: Tensor | None, eps: float, shape: int | Sequence[int] | None) -> Tensor:
    """Compute rms_norm() over several dimensions, or without weight."""
    must = _normalized(x, shape, weight=weight)
    if weight is None:
        return _rms_norm_formula(x, None, eps, must)
    if len(must) == 1:
        return rms_norm(x, weight, eps)
    return rms_norm(x.flatten(-len(must)), weight.flatten(), eps).view(x.shape)


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


def _norms(op: Op) -> OpKernels:
    return OpKernels(op, lambda x, eps, _type_of_vectors: with_epsilon(matrix(x), eps))


def _grads(op: Op) -> OpKernels:
    return OpKernels(op, lambda x, _type_of_vectors: matrix(x))


def _outputs(x: Tensor, statistics: int) -> list[Tensor]:
    """Room for y, and for statistics of each row: float32, or float64 for float64. x: contiguous."""
    new, shape, dtype = allocator(x), tuple(x.shape), x.dtype
    rows = x.numel() // shape[-1] if shape[-1] else 0
    return [new(shape, x.stride(), dtype), *[new((rows,), (1,), _wide_type(x)) for _ in range(statistics)]]


def _wide_type(x: Tensor) -> torch.dtype:
    """The type that sums are in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _wide(x: Tensor) -> Tensor:
    """The tensor in the type that sums are in."""
    return x.double() if x.dtype == torch.float64 else x.float()


# ---- LayerNorm.


_layer_norms, _layer_norm_grads = _norms(LAYER_NORM), _grads(LAYER_NORM_GRAD)


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


@without_autocast
def _layer_norm_formula(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, shape: Sequence[int] | None = None
) -> Tensor:
    gamma, beta = (None if one is None else _wide(one.to(x.dtype)) for one in (weight, bias))
    over = [*(shape or x.shape[-1:])]
    if gamma is None and beta is not None:  # of which torch has no second derivatives
        return (functional.layer_norm(_wide(x), over, eps=eps) + beta).to(x.dtype)
    return functional.layer_norm(_wide(x), over, gamma, beta, eps).to(x.dtype)


def _layer_norm_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight, _, _ = ctx.saved_tensors
    var, mean = torch.var_mean(_wide(x), -1, correction=0)
    return *_layer_norm_grad_by_torch(dy, x, weight, mean, (var + ctx.eps).rsqrt()), None


def _layer_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, _, ctx.eps = inputs
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
    formula=_layer_norm_formula,
    backward_formula=_layer_norm_backward_formula,
)
_layer_norm_grad = operator(
    "layer_norm_grad",
    "(Tensor dy, Tensor x, Tensor weight, Tensor mean, Tensor rstd) -> (Tensor, Tensor, Tensor)",
    _layer_norm_grad_run,
    _layer_norm_grad_fake,
)


# ---- RMSNorm.


_rms_norms, _rms_norm_grads = _norms(RMS_NORM), _grads(RMS_NORM_GRAD)


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


@without_autocast
def _rms_norm_formula(x: Tensor, weight: Tensor | None, eps: float, shape: Sequence[int] | None = None) -> Tensor:
    over = tuple(range(-len(shape or x.shape[-1:]), 0))
    y = _wide(x) * (_wide(x).square().mean(over, keepdim=True) + eps).rsqrt()
    return (y if weight is None else y * _wide(weight.to(x.dtype))).to(x.dtype)


def _rms_norm_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight, _ = ctx.saved_tensors
    rstd = (_wide(x).square().mean(-1) + ctx.eps).rsqrt()
    return *_rms_norm_grad_by_torch(dy, x, weight, rstd), None


def _rms_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, ctx.eps = inputs
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
    formula=_rms_norm_formula,
    backward_formula=_rms_norm_backward_formula,
)
_rms_norm_grad = operator(
    "rms_norm_grad",
    "(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    _rms_norm_grad_run,
    _rms_norm_grad_fake,
)
