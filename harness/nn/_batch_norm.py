"""Batch norm in training, the addition of a residual, and ReLU, with one bit an element for the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.nn._kernels import capturing, kernel, operator
from harness.ops._bits import pack, unpack
from harness.ops.batch_norm._batch_norm import EPSILON, MOMENTUM

_ZEROS: dict[tuple[str, torch.dtype], list[Tensor]] = {}
"""For each device and dtype, zeros that stand for a residual where there is none; the last ones are the most.

None are given back, since a captured graph may read them.
"""


def batch_norm_add_relu(  # noqa: PLR0913, PLR0917 - what torch's batch_norm takes, and a residual
    x: Tensor,
    residual: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    training: bool = True,
    momentum: float = MOMENTUM,
    eps: float = EPSILON,
) -> Tensor:
    """Batch norm, a residual and ReLU, relu(batch_norm(x) + residual), as torch's batch_norm has it.

    x, residual: (N, C, H, W); the others: (C,). In training the running statistics move to those of the batch. Images
    may be contiguous or channels_last; the result lies in memory as x does. It has the type of x, also under autocast.
    All is computed in float32. Ours is training with momentum 0.1, eps 1e-5 and at least two elements a channel; torch
    does the rest. Without a residual our kernel reads zeros in its place, which keep the memory of the largest such x.
    Raises ValueError for shapes that don't fit each other.
    """
    _checked(x, residual, running_mean, running_var, weight, bias)
    if not training or momentum != MOMENTUM or eps != EPSILON or x.numel() <= x.shape[1]:
        vectors = running_mean, running_var, weight, bias
        y = functional.batch_norm(x, *vectors, training=training, momentum=momentum, eps=eps)
        return functional.relu(y if residual is None else y + residual)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    running = torch.stack([running_mean, running_var]).to(wide)
    y, _, _, _, new = _bn_add_relu(x, residual, weight.to(wide), bias.to(wide), running, last)
    torch._foreach_copy_([running_mean, running_var], [*new.unbind()])
    return y


def _checked(x: Tensor, residual: Tensor | None, *vectors: Tensor) -> None:
    if x.ndim != 4 or any(vector.shape != x.shape[1:2] for vector in vectors):
        raise ValueError(f"x is {tuple(x.shape)}; it must be (N, C, H, W), and statistics, weight and bias (C,)")
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        found = f"{tuple(residual.shape)} of {residual.dtype}"
        raise ValueError(f"the residual is {found}; x is {tuple(x.shape)} of {x.dtype}: make them alike")


def _format(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format


def _ordered(x: Tensor, last: bool) -> Tensor:
    """The images (N, C, H, W) in the wanted order of memory, as kernels see them: contiguous."""
    x = x.contiguous(memory_format=_format(last))
    return x.permute(0, 2, 3, 1) if last else x


def _case(x: Tensor, last: bool) -> tuple[dict[str, int], dict[str, str]]:
    return dict(zip("NCHW", x.shape, strict=True)), {"layout": "nhwc" if last else "nchw"}


def _zeros(x: Tensor) -> Tensor:
    """Zeros with the shape of x; calls share their memory."""
    kept = _ZEROS.setdefault((str(x.device), x.dtype), [])
    if kept and kept[-1].numel() >= x.numel():
        return kept[-1][: x.numel()].view(x.shape)
    zeros = x.new_zeros(x.numel())
    if not capturing():
        kept.append(zeros)
    return zeros.view(x.shape)


def _run(  # noqa: PLR0913, PLR0917 - an operator takes what its kernel takes
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running: Tensor, last: bool
) -> tuple[Tensor, ...]:
    launch = kernel("bn_add_relu", x, *_case(x, last))
    if launch is None:
        return _by_torch(x, residual, weight, bias, running, last)
    y, bits, mean, invstd, _ = _fake(x, residual, weight, bias, running, last)
    new, ordered = running.clone(), _ordered(x, last)
    z = _zeros(ordered) if residual is None else _ordered(residual, last)
    vectors = {"gamma": weight.contiguous(), "beta": bias.contiguous(), "running_mean": new[0], "running_var": new[1]}
    launch(x=ordered, z=z, **vectors, y=_ordered(y, last), mask=bits, mean=mean, invstd=invstd)
    return y, bits, mean, invstd, new


def _by_torch(  # noqa: PLR0913, PLR0917 - as _run()
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running: Tensor, last: bool
) -> tuple[Tensor, ...]:
    wide = x.to(weight.dtype)
    var, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
    invstd = (var + EPSILON).rsqrt()
    y = (wide - _channels(mean)) * _channels(invstd * weight) + _channels(bias)
    y = functional.relu(y if residual is None else y + residual).to(x.dtype).contiguous(memory_format=_format(last))
    count = x.numel() // x.shape[1]
    batch = torch.stack([mean, var * (count / (count - 1))])
    return y, pack(_ordered(y, last).flatten() > 0), mean, invstd, torch.lerp(running, batch, MOMENTUM)


def _channels(vector: Tensor) -> Tensor:
    return vector[:, None, None]


def _fake(
    x: Tensor, _residual: Tensor | None, weight: Tensor, _bias: Tensor, running: Tensor, last: bool
) -> tuple[Tensor, ...]:
    y = torch.empty_like(x, memory_format=_format(last))
    bits = x.new_empty((x.numel() + 31) // 32, dtype=torch.int32)
    return y, bits, weight.new_empty(weight.shape), weight.new_empty(weight.shape), running.new_empty(running.shape)


def _grad_run(  # noqa: PLR0913, PLR0917 - as _run()
    dy: Tensor, x: Tensor, bits: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, last: bool
) -> tuple[Tensor, ...]:
    launch = kernel("bn_add_relu_grad", x, *_case(x, last))
    if launch is None:
        return _grad_by_torch(dy, x, bits, weight, mean, invstd, last)
    dx, dz, dgamma, dbeta = _grad_fake(dy, x, bits, weight, mean, invstd, last)
    images = {"dy": dy.to(x.dtype), "x": x, "dx": dx, "dz": dz}
    given = {"mask": bits, "gamma": weight.contiguous(), "mean": mean, "invstd": invstd}
    launch(**{name: _ordered(one, last) for name, one in images.items()}, **given, dgamma=dgamma, dbeta=dbeta)
    return dx, dz, dgamma, dbeta


def _grad_by_torch(  # noqa: PLR0913, PLR0917 - as _run()
    dy: Tensor, x: Tensor, bits: Tensor, weight: Tensor, mean: Tensor, invstd: Tensor, last: bool
) -> tuple[Tensor, ...]:
    ordered = _ordered(dy, last)
    dz = torch.where(unpack(bits, dy.numel()).view(ordered.shape), ordered, 0)
    dz = dz.permute(0, 3, 1, 2) if last else dz
    wide, over = dz.to(weight.dtype), (0, 2, 3)
    xhat = (x.to(weight.dtype) - _channels(mean)) * _channels(invstd)
    dbeta, dgamma = wide.sum(over), (wide * xhat).sum(over)
    count = x.numel() // x.shape[1]
    dx = _channels(invstd * weight) * (wide - _channels(dbeta / count) - xhat * _channels(dgamma / count))
    return dx.to(x.dtype).contiguous(memory_format=_format(last)), dz.to(x.dtype), dgamma, dbeta


def _grad_fake(
    _dy: Tensor, x: Tensor, _bits: Tensor, weight: Tensor, _mean: Tensor, _invstd: Tensor, last: bool
) -> tuple[Tensor, ...]:
    dx, dz = (torch.empty_like(x, memory_format=_format(last)) for _ in "xz")
    return dx, dz, weight.new_empty(weight.shape), weight.new_empty(weight.shape)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, residual, weight, _, _, ctx.last = inputs
    _, bits, mean, invstd, new = output
    ctx.has_residual = residual is not None
    ctx.save_for_backward(x, bits, weight, mean, invstd)
    ctx.mark_non_differentiable(bits, mean, invstd, new)


def _backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Any, ...]:
    dx, dz, dgamma, dbeta = _bn_add_relu_grad(dy, *ctx.saved_tensors, ctx.last)
    return dx, dz if ctx.has_residual else None, dgamma, dbeta, None, None


_OUTPUTS = "(Tensor, Tensor, Tensor, Tensor"
_bn_add_relu = operator(
    "bn_add_relu",
    f"(Tensor x, Tensor? z, Tensor weight, Tensor bias, Tensor running, bool last) -> {_OUTPUTS}, Tensor)",
    _run,
    _fake,
)
_bn_add_relu_grad = operator(
    "bn_add_relu_grad",
    f"(Tensor dy, Tensor x, Tensor bits, Tensor weight, Tensor mean, Tensor invstd, bool channels_last) -> {_OUTPUTS})",
    _grad_run,
    _grad_fake,
)
_bn_add_relu.register_autograd(_backward, setup_context=_saves)
