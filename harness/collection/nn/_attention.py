"""Attention within windows: two products with softmax between them, for each window and head."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.collection.nn._kernels import Described, KernelLaunch, OpKernels, allocator, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.ops.attention.window_attention import OP as WINDOW_ATTENTION
from harness.collection.ops.attention.window_attention_grad import OP as WINDOW_ATTENTION_GRAD
from harness.collection.ops.attention.window_attention_packed import OP as WINDOW_ATTENTION_PACKED


def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention within windows, softmax(q k^T / sqrt(D) + bias + mask) v: (N, T, 3C) to (N, T, C).

    It is what SwinOperators asks for. N: windows; T: pixels of a window; C: heads times D. qkv: queries, keys and
    values one after the other, and each of them has its heads one after the other. bias: (heads, T, T). mask: (windows
    of an image, T, T), or None. bias and mask are rounded to the type of qkv; mask gets no gradient. Scores and weights
    are computed anew in the backward, for which qkv, bias and mask are kept. Kernels take halves: the forward's up to
    256 pixels on tensor cores, the backward's up to 144, both with heads of even sizes up to 64. Raises ValueError for
    shapes that don't fit each other, and for integers.

    >>> qkv, bias = torch.zeros(1, 2, 3), torch.zeros(1, 2, 2)
    >>> qkv[0, :, 2] = torch.tensor([1.0, 3.0])
    >>> nn.window_attention(qkv, bias)
    tensor([[[2.],
             [2.]]])
    """
    _checked(qkv, bias, mask)
    dtype = qkv.dtype
    if mask is not None and mask.dtype != dtype:
        mask = mask.to(dtype)
    return _window_attention(qkv, bias if bias.dtype == dtype else bias.to(dtype), mask)


def _checked(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> None:
    if not qkv.dtype.is_floating_point:
        raise ValueError(f"qkv is of {qkv.dtype}; attention takes floating-point numbers")
    tokens = qkv.shape[1] if qkv.ndim == 3 else -1
    if bias.ndim != 3 or bias.shape[1:] != (tokens, tokens) or qkv.shape[2] % (3 * len(bias) or 1):
        raise ValueError(f"qkv {tuple(qkv.shape)} must be (N, T, 3C), bias {tuple(bias.shape)} (heads, T, T)")
    if mask is not None and (mask.ndim != 3 or mask.shape[1:] != (tokens, tokens) or qkv.shape[0] % len(mask)):
        raise ValueError(f"the mask {tuple(mask.shape)} must be (G, T, T), where G divides the {qkv.shape[0]} windows")


def _sizes(qkv: Tensor, heads: int, masks: int | None) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes and the choice of a mask, as the catalogue's ops have them. masks: windows of an image, if masks differ."""
    sizes = {"W": qkv.shape[0], "H": heads, "T": qkv.shape[1], "D": qkv.shape[2] // (3 * heads), "G": masks or 1}
    return sizes, {"mask": "none" if masks is None else "shift"}


def _packed(qkv: Tensor, heads: int, masks: int | None) -> Described:
    sizes, choice = _sizes(qkv, heads, masks)
    side = math.isqrt(sizes["T"])
    return Described({name: side if name == "side" else sizes[name] for name in ("W", "H", "side", "D", "G")}, choice)


def _apart(qkv: Tensor, heads: int, masks: int | None) -> Described:
    sizes, choice = _sizes(qkv, heads, masks)
    return Described(sizes, {"bias": "yes", **choice})


def _grad(qkv: Tensor, heads: int, masks: int | None) -> Described:
    # So compiled, the kernel takes heads as they lie in qkv, and finds k and v behind q: nothing is copied.
    return replace(_apart(qkv, heads, masks), macros={"PACKED": heads})


_packed_kernels, _apart_kernels = OpKernels(WINDOW_ATTENTION_PACKED, _packed), OpKernels(WINDOW_ATTENTION, _apart)
_grad_kernels = OpKernels(WINDOW_ATTENTION_GRAD, _grad)


def _masks(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """The masks as kernels take them: contiguous, and empty if there are none."""
    if mask is not None:
        return mask.contiguous()
    tokens = qkv.shape[1]
    return allocator(qkv)((0, tokens, tokens), (tokens * tokens, tokens, 1), qkv.dtype)


def _split(qkv: Tensor, heads: int) -> Tensor:
    """Queries, keys and values: a view (3, W, H, T, D)."""
    windows, tokens, size = qkv.shape
    return qkv.reshape(windows, tokens, 3, heads, size // (3 * heads)).permute(2, 0, 3, 1, 4)


def _heads(out: Tensor, heads: int) -> Tensor:
    """The heads of (W, T, C): a view (W, H, T, D)."""
    windows, tokens, size = out.shape
    return out.reshape(windows, tokens, heads, size // heads).transpose(1, 2)


def _attention_run(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    qkv = qkv.contiguous()
    options = len(bias), None if mask is None else len(mask)
    tokens = qkv.shape[1]
    if math.isqrt(tokens) ** 2 == tokens and (launch := _packed_kernels(qkv, *options)):
        out = _attention_fake(qkv, bias, mask)
        launch(qkv, bias.contiguous(), _masks(qkv, mask), out)
        return out
    launch = _apart_kernels(qkv, *options)
    return _attention_by_torch(qkv, bias, mask) if launch is None else _attention_apart(launch, qkv, bias, mask)


def _attention_apart(launch: KernelLaunch, qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Attention by the kernel that takes queries, keys and values one after the other."""
    out = _attention_fake(qkv, bias, mask)
    q, k, v = _split(qkv, len(bias)).contiguous()
    made = torch.empty_like(q)
    launch(q, k, v, bias.contiguous(), _masks(qkv, mask), made)
    _heads(out, len(bias)).copy_(made)
    return out


@without_autocast
def _attention_by_torch(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    parts = _split(qkv, len(bias))
    return (_weights(parts, bias, mask) @ parts[2]).transpose(1, 2).flatten(2).clone()


def _weights(parts: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """The weights (W, H, T, T), by torch, from (3, W, H, T, D)."""
    q, k = parts[0], parts[1]
    scores = q * q.shape[-1] ** -0.5 @ k.mT + bias
    if mask is not None:
        of_images = scores.unflatten(0, (scores.shape[0] // mask.shape[0], mask.shape[0]))
        scores = (of_images + mask[:, None]).flatten(0, 1)
    return torch.softmax(scores, -1)


def _attention_fake(qkv: Tensor, _bias: Tensor, _mask: Tensor | None) -> Tensor:
    windows, tokens, size = qkv.shape
    size //= 3
    return allocator(qkv)((windows, tokens, size), (tokens * size, size, 1), qkv.dtype)


def _attention_grad_run(dout: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    dout, qkv, bias = dout.contiguous(), qkv.contiguous(), bias.contiguous()
    launch = _grad_kernels(qkv, len(bias), None if mask is None else len(mask))
    if launch is None:
        return _attention_grad_by_torch(dout, qkv, bias, mask)
    dqkv, dbias = like(qkv), like(bias)
    launch(dout, qkv, qkv, qkv, bias, _masks(qkv, mask), dqkv, dqkv, dqkv, dbias)
    return dqkv, dbias


@without_autocast
def _attention_grad_by_torch(dout: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    parts = _split(qkv, len(bias))
    grads, ds = _gradients(_heads(dout, len(bias)), parts, _weights(parts, bias, mask))
    return grads.permute(1, 3, 0, 2, 4).reshape(qkv.shape).contiguous(), ds.sum(0)


def _gradients(dout: Tensor, parts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values (3, W, H, T, D), and of the scores, by torch."""
    q, k, v = parts
    scale = q.shape[-1] ** -0.5
    dp = dout @ v.mT
    ds = weights * (dp - (weights * dp).sum(-1, keepdim=True))
    return torch.stack([ds @ k * scale, ds.mT @ q * scale, weights.mT @ dout]), ds


def _attention_grad_fake(_dout: Tensor, qkv: Tensor, bias: Tensor, _mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return like(qkv), like(bias)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    return *_window_attention_grad(dout, *ctx.saved_tensors), None


def _backward_formula(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    return *_attention_grad_by_torch(dout, *ctx.saved_tensors), None


def _formula(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    return _attention_by_torch(qkv, bias, None if mask is None else mask.detach())


_window_attention = operator(
    "window_attention",
    "(Tensor qkv, Tensor bias, Tensor? mask) -> Tensor",
    _attention_run,
    _attention_fake,
    _saves,
    _backward,
    formula=_formula,
    backward_formula=_backward_formula,
)
_window_attention_grad = operator(
    "window_attention_grad",
    "(Tensor dout, Tensor qkv, Tensor bias, Tensor? mask) -> (Tensor, Tensor)",
    _attention_grad_run,
    _attention_grad_fake,
)
