"""Batch norm in training, the addition of a residual, and ReLU, with one bit an element for the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import Described, OpKernels, allocator, like
from harness.collection.nn._operators import is_eager, is_for_torch, operator, straight, without_autocast
from harness.collection.ops.batch_norm._batch_norm import EPSILON, MOMENTUM
from harness.collection.ops.batch_norm.bn_add_relu import OP as BN_ADD_RELU
from harness.collection.ops.batch_norm.bn_add_relu_grad import OP as BN_ADD_RELU_GRAD
from harness.collection.ops.bits import pack, unpack


def batch_norm_add_relu(  # noqa: PLR0913, PLR0917 - what torch's batch_norm takes, and a residual
    x: Tensor,
    residual: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool = True,
    momentum: float = MOMENTUM,
    eps: float = EPSILON,
) -> Tensor:
    """Batch norm, a residual and ReLU, relu(batch_norm(x) + residual), as torch's batch_norm has it.

    x, residual: (N, C, H, W); all other tensors: (C,). In training the running statistics move to the batch's. Images
    may be contiguous or channels_last; the result lies in memory as x does. It has the type of x, also under autocast.
    All is computed in float32. Ours is training with momentum 0.1, eps 1e-5 and at least two elements a channel; torch
    does the rest, also where statistics or weight and bias are None. The backward has x, the batch's statistics, and a
    bit an element in place of the result.
    Raises ValueError for shapes that don't fit each other, and for integers.

    >>> x, mean, var = torch.tensor([-2.0, 2.0]).view(2, 1, 1, 1), torch.zeros(1), torch.ones(1)
    >>> nn.batch_norm_add_relu(x, None, mean, var, torch.ones(1), torch.zeros(1)).flatten()
    tensor([0.0000, 1.0000])
    >>> mean, var
    (tensor([0.]), tensor([1.7000]))
    """
    _checked(x, residual, running_mean, running_var, weight, bias)
    eager = is_eager((x, residual, running_mean, running_var, weight, bias))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    # A copy only where they aren't as kernels want them. A kernel updates them in place, but for a compiler, which
    # takes no operator with a gradient that does so.
    moved: list[Any] = [
        one if one is None or one.dtype == wide else one.to(wide) for one in (running_mean, running_var)
    ]
    gamma, beta = (one if one is None or one.dtype == wide else one.to(wide) for one in (weight, bias))
    ours = training and momentum == MOMENTUM and eps == EPSILON and x.numel() > x.shape[1]
    is_whole = running_mean is not None and running_var is not None and weight is not None and bias is not None
    if not ours or not is_whole or (not eager and is_for_torch((x, residual, weight, bias))):
        y = _formula(x, residual, (moved[0], moved[1]), (gamma, beta), training, momentum, eps)
    else:
        last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        moved = [one.contiguous() for one in moved]
        if eager:
            y = _in_place(x, residual, gamma, beta, *moved, last)
        else:
            y, _, _, _, *moved = torch.ops.harness.bn_add_relu(x, residual, gamma, beta, *moved, last)
    for own, new in zip((running_mean, running_var), moved, strict=True):
        if training and own is not None and new is not own:
            own.copy_(new)
    return y


def _checked(x: Tensor, residual: Tensor | None, *vectors: Tensor | None) -> None:
    if x.ndim != 4 or any(vector is not None and vector.shape != x.shape[1:2] for vector in vectors):
        raise ValueError(f"x is {tuple(x.shape)}; it must be (N, C, H, W), and statistics, weight and bias (C,)")
    if not x.dtype.is_floating_point:
        raise ValueError(f"x is of {x.dtype}; batch norm takes floating-point numbers")
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        found = f"{tuple(residual.shape)} of {residual.dtype}"
        raise ValueError(f"the residual is {found}; x is {tuple(x.shape)} of {x.dtype}: make them alike")


@without_autocast
def _formula(  # noqa: PLR0913, PLR0917 - as batch_norm_add_relu()
    x: Tensor,
    residual: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    vectors: tuple[Tensor | None, Tensor | None],
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    y = functional.batch_norm(x, *running, *vectors, training=training, momentum=momentum, eps=eps)
    return functional.relu(y if residual is None else y + residual)


def _format(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def _ordered(x: Tensor, last: bool) -> Tensor:
    """The images (N, C, H, W) in the wanted order of memory, as kernels see them: contiguous."""
    x = x.contiguous(memory_format=_format(last))
    return x.permute(0, 2, 3, 1) if last else x


def _call(x: Tensor, last: bool, has_residual: bool) -> Described:
    sizes = dict(zip("NCHW", x.shape, strict=True))
    return Described(sizes, {"layout": "nhwc" if last else "nchw"}, macros={} if has_residual else {"RESIDUAL": 0})


_kernels, _grad_kernels = OpKernels(BN_ADD_RELU, _call), OpKernels(BN_ADD_RELU_GRAD, _call)


def _run_in_place(  # noqa: PLR0913, PLR0917 - an operator takes what its kernel takes
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    last: bool,
) -> tuple[Tensor, ...]:
    """Make y, its bits, mean and invstd. The running statistics are updated in place."""
    launch = _kernels(x, last, residual is not None)
    if launch is None:
        return _by_torch(x, residual, weight, bias, running_mean, running_var, last)
    x = x.contiguous(memory_format=_format(last))
    y, bits, mean, invstd = _outputs(x, weight, last)
    # Without a residual, z isn't read: x stands in its place.
    z = x if residual is None else residual.contiguous(memory_format=_format(last))
    launch(x, z, weight.contiguous(), bias.contiguous(), running_mean, running_var, y, bits, mean, invstd)
    return y, bits, mean, invstd


def _run(  # noqa: PLR0913, PLR0917 - as _run_in_place()
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    last: bool,
) -> tuple[Tensor, ...]:
    new = running_mean.clone(), running_var.clone()
    return *_run_in_place(x, residual, weight, bias, *new, last), *new


@without_autocast
def _by_torch(  # noqa: PLR0913, PLR0917 - as _run_in_place()
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    last: bool,
) -> tuple[Tensor, ...]:
    wide = x.to(weight.dtype)
    var, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
    invstd = (var + EPSILON).rsqrt()
    y = (wide - _channels(mean)) * _channels(invstd * weight) + _channels(bias)
    y = functional.relu(y if residual is None else y + residual).to(x.dtype).contiguous(memory_format=_format(last))
    count = x.numel() // x.shape[1]
    running_mean.lerp_(mean, MOMENTUM)
    running_var.lerp_(var * (count / (count - 1)), MOMENTUM)
    return y, pack(_ordered(y, last).flatten() > 0), mean, invstd


def _channels(vector: Tensor) -> Tensor:
    return vector[:, None, None]


def _outputs(x: Tensor, weight: Tensor, last: bool) -> tuple[Tensor, ...]:
    return _images(x, last), allocator(x)(((x.numel() + 31) // 32,), (1,), torch.int32), like(weight), like(weight)


def _images(x: Tensor, last: bool) -> Tensor:
    """Room for images as x, in the wanted order of memory."""
    batch, channels, height, width = x.shape
    order = (1, width * channels, channels) if last else (height * width, width, 1)
    return allocator(x)((batch, channels, height, width), (channels * height * width, *order), x.dtype)


def _fake(
    x: Tensor,
    _residual: Tensor | None,
    weight: Tensor,
    _bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    last: bool,
) -> tuple[Tensor, ...]:
    return *_outputs(x, weight, last), torch.empty_like(running_mean), torch.empty_like(running_var)


def _grad_run(  # noqa: PLR0913, PLR0917 - as _run_in_place()
    dy: Tensor,
    x: Tensor,
    bits: Tensor,
    weight: Tensor,
    mean: Tensor,
    invstd: Tensor,
    has_residual: bool,
    last: bool,
) -> tuple[Tensor, ...]:
    """Make dx, dz, dgamma and dbeta. Without a residual, dz has no elements."""
    launch = _grad_kernels(x, last, has_residual)
    if launch is None:
        return _grad_by_torch(dy, x, bits, weight, mean, invstd, has_residual, last)
    dx, dz, dgamma, dbeta = _grad_fake(dy, x, bits, weight, mean, invstd, has_residual, last)
    dy, x = (one.contiguous(memory_format=_format(last)) for one in (dy.to(x.dtype), x))
    # Without a residual, dz isn't written: dx stands in its place.
    launch(dy, x, bits, weight.contiguous(), mean, invstd, dx, dz if has_residual else dx, dgamma, dbeta)
    return dx, dz, dgamma, dbeta


@without_autocast
def _grad_by_torch(  # noqa: PLR0913, PLR0917 - as _run_in_place()
    dy: Tensor,
    x: Tensor,
    bits: Tensor,
    weight: Tensor,
    mean: Tensor,
    invstd: Tensor,
    has_residual: bool,
    last: bool,
) -> tuple[Tensor, ...]:
    ordered = _ordered(dy, last)
    dz = torch.where(unpack(bits, dy.numel()).view(ordered.shape), ordered, 0)
    dz = dz.permute(0, 3, 1, 2) if last else dz
    wide, over = dz.to(weight.dtype), (0, 2, 3)
    xhat = (x.to(weight.dtype) - _channels(mean)) * _channels(invstd)
    dbeta, dgamma = wide.sum(over), (wide * xhat).sum(over)
    count = x.numel() // x.shape[1]
    dx = _channels(invstd * weight) * (wide - _channels(dbeta / count) - xhat * _channels(dgamma / count))
    dx = dx.to(x.dtype).contiguous(memory_format=_format(last))
    return dx, dz.to(x.dtype) if has_residual else x.new_empty(0), dgamma, dbeta


def _grad_fake(
    _dy: Tensor,
    x: Tensor,
    _bits: Tensor,
    weight: Tensor,
    _mean: Tensor,
    _invstd: Tensor,
    has_residual: bool,
    last: bool,
) -> tuple[Tensor, ...]:
    dz = _images(x, last) if has_residual else allocator(x)((0,), (1,), x.dtype)
    return _images(x, last), dz, like(weight), like(weight)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, *_, ctx.last = inputs
    _, bits, mean, invstd, *_ = output
    ctx.has_residual = residual is not None
    ctx.save_for_backward(x, bits, weight, mean, invstd)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    dx, dz, dgamma, dbeta = _bn_add_relu_grad(dy, *ctx.saved_tensors, ctx.has_residual, ctx.last)
    return dx, dz if ctx.has_residual else None, dgamma, dbeta, None, None, None


def _backward_formula(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, bits, weight, _, _ = ctx.saved_tensors
    var, mean = torch.var_mean(x.to(weight.dtype), (0, 2, 3), correction=0)
    saved = x, bits, weight, mean, (var + EPSILON).rsqrt()
    dx, dz, dgamma, dbeta = _grad_by_torch(dy, *saved, ctx.has_residual, ctx.last)
    return dx, dz if ctx.has_residual else None, dgamma, dbeta, None, None, None


_OF_CHANNELS = "Tensor weight, Tensor bias, Tensor running_mean, Tensor running_var"
_SAVED = "Tensor bits, Tensor weight, Tensor mean, Tensor invstd"
_OUTPUTS = "(Tensor, Tensor, Tensor, Tensor"
_in_place = straight("bn_add_relu", _run_in_place, _saves, _backward, _backward_formula)
operator(
    "bn_add_relu",
    f"(Tensor x, Tensor? z, {_OF_CHANNELS}, bool last) -> {_OUTPUTS}, Tensor, Tensor)",
    _run,
    _fake,
    _saves,
    _backward,
    backward_formula=_backward_formula,
)
_bn_add_relu_grad = operator(
    "bn_add_relu_grad",
    f"(Tensor dy, Tensor x, {_SAVED}, bool has_residual, bool last) -> {_OUTPUTS})",
    _grad_run,
    _grad_fake,
)
