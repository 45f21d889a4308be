"""Softmax over the last dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import OpKernels, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.nn._rows import _wide, matrix
from harness.collection.ops.rows.softmax import OP as SOFTMAX
from harness.collection.ops.rows.softmax_grad import OP as SOFTMAX_GRAD


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """Divide exp(x) by its sum along `dim`. The result has the type of x, also under autocast.

    dtype: type that x is converted to before. Torch does it for other dimensions than the last one.
    Raises IndexError for a dimension that x doesn't have, and torch's error for integers.

    >>> nn.softmax(torch.zeros(1, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    x = x if dtype is None else x.to(dtype)
    if (dim != -1 and dim != x.ndim - 1) or not x.dtype.is_floating_point or not x.ndim:
        return _softmax_along(x, dim)
    return _softmax(x)


@without_autocast
def _softmax_along(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


_softmaxes, _softmax_grads = OpKernels(SOFTMAX, matrix), OpKernels(SOFTMAX_GRAD, matrix)


def _softmax_run(x: Tensor) -> Tensor:
    launch = _softmaxes(x)
    if launch is None:
        return _softmax_formula(x).contiguous()
    x = x.contiguous()
    y = like(x)
    launch(x, y)
    return y


@without_autocast
def _softmax_formula(x: Tensor) -> Tensor:
    return functional.softmax(_wide(x), -1).to(x.dtype)


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
    slope, of_y = _wide(dy), _wide(y)
    return (of_y * (slope - (slope * of_y).sum(-1, keepdim=True))).to(y.dtype).contiguous()


def _softmax_saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(output)


def _softmax_backward(ctx: Any, dy: Tensor) -> Tensor:
    return _softmax_grad(dy, *ctx.saved_tensors)


def _softmax_backward_formula(ctx: Any, dy: Tensor) -> Tensor:
    return _softmax_grad_by_torch(dy, *ctx.saved_tensors)


_softmax = operator(
    "softmax",
    "(Tensor x) -> Tensor",
    _softmax_run,
    like,
    _softmax_saves,
    _softmax_backward,
    formula=_softmax_formula,
    backward_formula=_softmax_backward_formula,
)
_softmax_grad = operator("softmax_grad", "(Tensor dy, Tensor y) -> Tensor", _softmax_grad_run, lambda _, y: like(y))
