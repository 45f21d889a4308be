"""What a decoder's layers consist of besides products and attention: RMSNorm with a residual, SwiGLU, RoPE."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import Described, OpKernels, allocator, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.nn._rows import (
    _misfit,
    _rms_norm_formula,
    _rms_norm_grad,
    _rms_norm_grad_by_torch,
    _rounded_by_kernel,
    _sum,
    _wide,
    matrix,
    norm_kernel,
    rms_norm,
    with_epsilon,
)
from harness.collection.ops.llm.swiglu import OP as SWIGLU
from harness.collection.ops.llm.swiglu_grad import OP as SWIGLU_GRAD
from harness.collection.ops.rows import add_rms_norm_quantize as quantise
from harness.collection.ops.rows._norm import EPS
from harness.collection.ops.rows.add_rms_norm import OP as ADD_RMS_NORM
from harness.collection.ops.rows.add_rms_norm_grad import OP as ADD_RMS_NORM_GRAD
from harness.collection.ops.rows.add_rms_norm_quantize import OP as ADD_RMS_NORM_QUANTIZE

# ---- A residual connection and RMSNorm.


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual over the last dimension, and the sum, which goes on as the next residual: (y, sum).

    x, residual: (..., N); weight: (N,). Types, eps and errors are as in layer_norm(). The sum is rounded to the type of
    x, and the norm is of the rounded sum. Torch adds tensors of different types or shapes.

    >>> nn.add_rms_norm(torch.tensor([[1.0, 2.0]]), residual=torch.tensor([[2.0, 1.0]]), weight=torch.ones(2), eps=0.0)
    (tensor([[1., 1.]]), tensor([[3., 3.]]))
    """
    if weight.shape != x.shape[-1:] or not x.dtype.is_floating_point or not x.ndim:
        raise _misfit(x, weight=weight)
    if residual.dtype != x.dtype or residual.shape != x.shape:
        total = x + residual
        return rms_norm(total, weight, eps), total
    if weight.dtype != x.dtype and not _rounded_by_kernel(x, weight):
        weight = weight.to(x.dtype)
    y, total = _add_rms_norm(x, residual, weight, eps)
    return y, total


_sums = OpKernels(ADD_RMS_NORM, lambda x, eps, _type_of_vectors: with_epsilon(matrix(x), eps))
_sum_grads = OpKernels(ADD_RMS_NORM_GRAD, lambda x, _type_of_vectors: matrix(x))


def _rows_of(x: Tensor) -> Tensor:
    """Room for a number of each row: float32, or float64 for float64."""
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return allocator(x)((rows,), (1,), wide)


def _add_rms_norm_run(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    launch = norm_kernel(_sums, x, eps, weight.dtype)
    if launch is None:
        return _add_rms_norm_by_torch(x, residual, weight.to(x.dtype), eps)
    x = x.contiguous()
    y, total, rstd = like(x), like(x), _rows_of(x)
    launch(x, residual.contiguous(), weight.contiguous(), total, y, rstd)
    return y, total, rstd


@without_autocast
def _add_rms_norm_by_torch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    total = (x + residual).contiguous()
    wide = _wide(total)
    rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * rstd * _wide(weight)).to(x.dtype).contiguous(), total, rstd.flatten()


def _add_rms_norm_fake(x: Tensor, _residual: Tensor, _weight: Tensor, _eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return like(x), like(x), _rows_of(x)


def _add_rms_norm_grad_run(dy: Tensor, dsum: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    launch = _sum_grads(x, weight.dtype)
    if launch is None:
        return _add_rms_norm_grad_by_torch(dy, dsum, x, weight, rstd)
    x, weight = x.contiguous(), weight.contiguous()
    dx, dgamma = like(x), like(weight)
    launch(dy.contiguous(), dsum.contiguous(), x, weight, rstd, dx, dgamma)
    return dx, dgamma


@without_autocast
def _add_rms_norm_grad_by_torch(
    dy: Tensor, dsum: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    wide, of_row = _wide(dy), rstd.view(*x.shape[:-1], 1)
    xhat, g = _wide(x) * of_row, wide * _wide(weight.to(x.dtype))
    dx = _wide(dsum) + of_row * (g - xhat * (g * xhat).mean(-1, keepdim=True))
    dgamma = _sum(wide * xhat, tuple(range(x.ndim - 1)))
    return dx.to(x.dtype).contiguous(), dgamma.to(x.dtype).to(weight.dtype)


def _add_rms_norm_grad_fake(
    _dy: Tensor, _dsum: Tensor, x: Tensor, weight: Tensor, _rstd: Tensor
) -> tuple[Tensor, Tensor]:
    return like(x), like(weight)


def _add_rms_norm_saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, total, rstd = output
    ctx.eps = inputs[3]
    ctx.save_for_backward(total, inputs[2], rstd)


def _add_rms_norm_backward(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    total, weight, rstd = ctx.saved_tensors
    if dy is None:
        return dsum, dsum, None, None
    if dsum is None:
        dx, dgamma = _rms_norm_grad(dy, total, weight, rstd)
    else:
        dx, dgamma = _add_rms_norm_grad(dy, dsum, total, weight, rstd)
    return dx, dx, dgamma, None


def _add_rms_norm_formula(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm_formula(total, weight, eps), total


def _add_rms_norm_backward_formula(ctx: Any, dy: Tensor | None, dsum: Tensor | None) -> tuple[Any, ...]:
    total, weight, _ = ctx.saved_tensors
    if dy is None:
        return dsum, dsum, None, None
    rstd = (_wide(total).square().mean(-1) + ctx.eps).rsqrt()
    if dsum is None:
        dx, dgamma = _rms_norm_grad_by_torch(dy, total, weight, rstd)
    else:
        dx, dgamma = _add_rms_norm_grad_by_torch(dy, dsum, total, weight, rstd)
    return dx, dx, dgamma, None


_add_rms_norm = operator(
    "add_rms_norm",
    "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    _add_rms_norm_run,
    _add_rms_norm_fake,
    _add_rms_norm_saves,
    _add_rms_norm_backward,
    slopes=2,
    formula=_add_rms_norm_formula,
    backward_formula=_add_rms_norm_backward_formula,
)
_add_rms_norm_grad = operator(
    "add_rms_norm_grad",
    "(Tensor dy, Tensor dsum, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    _add_rms_norm_grad_run,
    _add_rms_norm_grad_fake,
)


def add_rms_norm_quantize(  # noqa: PLR0913, PLR0917 - what a user may choose
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor | None = None, to: str = "e4m3", eps: float = EPS
) -> tuple[Tensor, Tensor, Tensor]:
    """RMSNorm of x + residual in 8 bits, its scale, and the sum: (q, scale, sum). It has no gradients.

    q: torch.float8_e4m3fn or torch.int8, of the shape of x; q * scale is the norm. scale: (1,), float32, if given;
    otherwise the result has one for each row, (..., 1): the row's largest number over 448 or 127. to: 'e4m3' or 'int8'.
    Types and eps are as in add_rms_norm(). Raises ValueError for another type, and for tensors that don't fit.

    >>> x, residual = torch.tensor([[127.0, -127.0]]), torch.zeros(1, 2)
    >>> q, scale, total = nn.add_rms_norm_quantize(x, residual, weight=torch.ones(2), to="int8")
    >>> q
    tensor([[ 127, -127]], dtype=torch.int8)
    """
    if to not in quantise.LARGEST:
        raise ValueError(f"to is {to!r}; allowed: {', '.join(quantise.LARGEST)}")
    if weight.shape != x.shape[-1:] or not x.dtype.is_floating_point or not x.ndim:
        raise _misfit(x, weight=weight)
    if residual.shape != x.shape or residual.dtype != x.dtype:
        found = f"residual is {tuple(residual.shape)}, {residual.dtype}"
        raise ValueError(f"{found}; it must be as x is: {tuple(x.shape)}, {x.dtype}")
    total, q, scales = _quantize(x, residual, weight.to(x.dtype), scale, to == "int8", eps)
    kind = torch.int8 if to == "int8" else torch.float8_e4m3fn
    return q.view(kind), scale if scale is not None else scales.view(*x.shape[:-1], 1), total


def _quantised(x: Tensor, eps: float, to: str, scales: str) -> Described:
    described = with_epsilon(matrix(x), eps)
    return Described(described.sizes, {"to": to, "scales": scales}, macros=described.macros)


_quantizes = OpKernels(ADD_RMS_NORM_QUANTIZE, _quantised)


def _quantize_run(  # noqa: PLR0913, PLR0917 - what the numbers are made of
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor | None, integers: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    to, scales = "int8" if integers else "e4m3", "row" if scale is None else "tensor"
    total, q, of_rows = _quantize_fake(x, residual, weight, scale, integers, eps)
    launch = norm_kernel(_quantizes, x, eps, to, scales)
    if launch is None:
        y, total, _ = _add_rms_norm_by_torch(x, residual, weight, eps)
        if scale is None:
            of_rows = _wide(y).abs().amax(-1).float().clamp(min=quantise.LEAST).flatten() / quantise.LARGEST[to]
        by = of_rows.view(*x.shape[:-1], 1) if scale is None else scale
        return total, quantise.as_bytes(_wide(y) / by, to), of_rows
    static = x.new_empty(0, dtype=torch.float32) if scale is None else scale
    launch(x.contiguous(), residual.contiguous(), weight.contiguous(), static, total, q, of_rows)
    return total, q, of_rows


def _quantize_fake(
    x: Tensor, _residual: Tensor, _weight: Tensor, scale: Tensor | None, _integers: bool, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.numel() // max(1, x.shape[-1]) if scale is None else 0
    total = like(x)
    new = allocator(x)
    q = new(tuple(x.shape), total.stride(), torch.uint8)
    return total, q, new((rows,), (1,), torch.float32)


_quantize = operator(
    "add_rms_norm_quantize",
    "(Tensor x, Tensor residual, Tensor weight, Tensor? scale, bool integers, float eps) -> (Tensor, Tensor, Tensor)",
    _quantize_run,
    _quantize_fake,
)


# ---- SwiGLU.


def swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """The product silu(gate) * up. gate, up: (..., H); without `up`, gate is (..., 2 H) and has up behind the gate.

    The result (..., H) has the type of gate. Raises ValueError where shapes or types don't fit.

    >>> nn.swiglu(torch.tensor([0.0, 100.0]), up=torch.tensor([5.0, 2.0]))
    tensor([  0., 200.])
    """
    if not gate.dtype.is_floating_point or not gate.ndim:
        found = f"gate is {tuple(gate.shape)}, and is of {gate.dtype}"
        raise ValueError(f"{found}; swiglu takes (..., H) of floating-point numbers")
    if up is None and gate.shape[-1] % 2:
        raise ValueError(f"gate is {tuple(gate.shape)}; without up, its last dimension is even: gate and up")
    if up is not None and (up.shape != gate.shape or up.dtype != gate.dtype):
        found = f"up is {tuple(up.shape)}, {up.dtype}"
        raise ValueError(f"{found}; it must be as gate is: {tuple(gate.shape)}, {gate.dtype}")
    made: Tensor = _swiglu(gate, up)
    return made


def _gated(gate: Tensor, layout: str) -> Described:
    columns = gate.shape[-1] // (2 if layout == "packed" else 1)
    return Described({"M": gate.numel() // max(1, gate.shape[-1]), "H": columns}, {"layout": layout})


_swiglus, _swiglu_grads = OpKernels(SWIGLU, _gated), OpKernels(SWIGLU_GRAD, _gated)


def _layout(up: Tensor | None) -> str:
    return "packed" if up is None else "separate"


def _up_of(gate: Tensor, up: Tensor | None) -> Tensor:
    """What kernels take for up: an empty tensor where it lies behind the gate."""
    return gate.new_empty(0) if up is None else up.contiguous()


def _swiglu_run(gate: Tensor, up: Tensor | None) -> Tensor:
    launch = _swiglus(gate, _layout(up))
    if launch is None:
        return _swiglu_by_torch(gate, up)
    gate, y = gate.contiguous(), _swiglu_fake(gate, up)
    launch(gate, _up_of(gate, up), y)
    return y


@without_autocast
def _swiglu_by_torch(gate: Tensor, up: Tensor | None) -> Tensor:
    first, second = gate.chunk(2, -1) if up is None else (gate, up)
    return (functional.silu(_wide(first)) * _wide(second)).to(gate.dtype).contiguous()


def _swiglu_fake(gate: Tensor, up: Tensor | None) -> Tensor:
    return gate.new_empty((*gate.shape[:-1], gate.shape[-1] // 2)) if up is None else like(gate)


def _swiglu_grad_run(dy: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    launch = _swiglu_grads(gate, _layout(up))
    if launch is None:
        return _swiglu_grad_by_torch(dy, gate, up)
    gate, (dgate, dup) = gate.contiguous(), _swiglu_grad_fake(dy, gate, up)
    launch(dy.contiguous(), gate, _up_of(gate, up), dgate, dup)
    return dgate, dup


@without_autocast
def _swiglu_grad_by_torch(dy: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    first, second = gate.chunk(2, -1) if up is None else (gate, up)
    wide, g = _wide(dy), _wide(first)
    # Torch's own backward of silu has no derivative.
    sigmoid = g.sigmoid()
    dgate = (wide * _wide(second) * sigmoid * (1 + g * (1 - sigmoid))).to(gate.dtype)
    dup = (wide * g * sigmoid).to(gate.dtype)
    if up is None:
        return torch.cat((dgate, dup), -1), gate.new_empty(0)
    return dgate.contiguous(), dup.contiguous()


def _swiglu_grad_fake(_dy: Tensor, gate: Tensor, up: Tensor | None) -> tuple[Tensor, Tensor]:
    return like(gate), gate.new_empty(0) if up is None else like(up)


def _swiglu_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
    gate, up = ctx.saved_tensors
    dgate, dup = _swiglu_grad(dy, gate, up)
    return dgate, None if up is None else dup


def _swiglu_backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
    gate, up = ctx.saved_tensors
    dgate, dup = _swiglu_grad_by_torch(dy, gate, up)
    return dgate, None if up is None else dup


_swiglu = operator(
    "swiglu",
    "(Tensor gate, Tensor? up) -> Tensor",
    _swiglu_run,
    _swiglu_fake,
    _swiglu_saves,
    _swiglu_backward,
    formula=_swiglu_by_torch,
    backward_formula=_swiglu_backward_formula,
)
_swiglu_grad = operator(
    "swiglu_grad",
    "(Tensor dy, Tensor gate, Tensor? up) -> (Tensor, Tensor)",
    _swiglu_grad_run,
    _swiglu_grad_fake,
)
