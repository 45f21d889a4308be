"""Attention within windows: two products with softmax between them, for each window and head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harness.collection.nn._kernels import kernel
from harness.collection.nn._operators import operator


def window_attention(qkv: Tensor, bias: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention within windows, softmax(q k^T / sqrt(D) + bias + mask) v: (N, T, 3C) to (N, T, C).

    It is what SwinOperators asks for. N: windows; T: pixels of a window; C: heads times D. qkv: queries, keys and
    values one after the other, and each of them has its heads one after the other. bias: (heads, T, T). mask: (windows
    of an image, T, T), or None. bias and mask are rounded to the type of qkv; mask gets no gradient. Scores and weights
    are computed anew in the backward, for which qkv, bias and mask are kept. Kernels take halves: the forward's up to
    256 pixels on tensor cores, the backward's up to 144 with heads of 32 or 64. Raises ValueError for shapes that don't
    fit each other.
    """
    _checked(qkv, bias, mask)
    mask = None if mask is None else mask.to(qkv.dtype)
    return _window_attention(qkv, bias.to(qkv.dtype), mask)


def _checked(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> None:
    tokens = qkv.shape[1] if qkv.ndim == 3 else -1
    if bias.ndim != 3 or bias.shape[1:] != (tokens, tokens) or qkv.shape[2] % (3 * len(bias) or 1):
        raise ValueError(f"qkv {tuple(qkv.shape)} must be (N, T, 3C), bias {tuple(bias.shape)} (heads, T, T)")
    if mask is not None and (mask.ndim != 3 or mask.shape[1:] != (tokens, tokens) or qkv.shape[0] % len(mask)):
        raise ValueError(f"the mask {tuple(mask.shape)} must be (G, T, T), where G divides the {qkv.shape[0]} windows")


def _sizes(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> tuple[dict[str, int], dict[str, str]]:
    """Sizes and the choice of a mask, as the catalogue's ops have them."""
    heads = len(bias)
    sizes = {"W": qkv.shape[0], "H": heads, "T": qkv.shape[1], "D": qkv.shape[2] // (3 * heads)}
    return sizes | {"G": 1 if mask is None else len(mask)}, {"mask": "none" if mask is None else "shift"}


def _masks(qkv: Tensor, mask: Tensor | None) -> Tensor:
    """The masks as kernels take them: contiguous, and empty if there are none."""
    tokens = qkv.shape[1]
    return qkv.new_empty(0, tokens, tokens) if mask is None else mask.contiguous()


def _split(qkv: Tensor, heads: int) -> Tensor:
    """Queries, keys and values: a view (3, W, H, T, D)."""
    windows, tokens, size = qkv.shape
    return qkv.view(windows, tokens, 3, heads, size // (3 * heads)).permute(2, 0, 3, 1, 4)


def _apart(out: Tensor, heads: int) -> Tensor:
    """The heads of (W, T, C): a view (W, H, T, D)."""
    return out.view(*out.shape[:2], heads, out.shape[2] // heads).transpose(1, 2)


def _attention_run(qkv: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    qkv = qkv.contiguous()
    sizes, choice = _sizes(qkv, bias, mask)
    side = math.isqrt(sizes["T"])
    out = _attention_fake(qkv, bias, mask)
    given = {"bias": bias.contiguous(), "mask": _masks(qkv, mask)}
    if side * side == sizes["T"]:
        packed = {name: side if name == "side" else sizes[name] for name in ("W", "H", "side", "D", "G")}
        if launch := kernel("window_attention_packed", qkv, packed, choice):
            launch(qkv=qkv, **given, out=out)
            return out
    parts = _split(qkv, len(bias))
    if launch := kernel("window_attention", qkv, sizes, {"bias": "yes", **choice}):
        q, k, v = parts.contiguous()
        made = torch.empty_like(q)
        launch(q=q, k=k, v=v, **given, out=made)
        _apart(out, len(bias)).copy_(made)
        return out
    return (_weights(parts, bias, mask) @ parts[2]).transpose(1, 2).reshape(out.shape).clone()


def _weights(parts: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """The weights (W, H, T, T), by torch, from (3, W, H, T, D)."""
    q, k, _ = parts
    scores = q * q.shape[-1] ** -0.5 @ k.mT + bias
    if mask is not None:
        of_images = scores.view(-1, len(mask), *scores.shape[1:])
        scores = (of_images + mask[:, None]).view(scores.shape)
    return torch.softmax(scores, -1)


def _attention_fake(qkv: Tensor, _bias: Tensor, _mask: Tensor | None) -> Tensor:
    windows, tokens, size = qkv.shape
    return qkv.new_empty(windows, tokens, size // 3)


def _attention_grad_run(dout: Tensor, qkv: Tensor, bias: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    dout, qkv, heads = dout.contiguous(), qkv.contiguous(), len(bias)
    sizes, choice = _sizes(qkv, bias, mask)
    dqkv, dbias = _attention_grad_fake(dout, qkv, bias, mask)
    launch = kernel("window_attention_grad", qkv, sizes, {"bias": "yes", **choice}, macros={"PACKED": heads})
    if launch is None:
        parts = _split(qkv, heads)
        grads, ds = _gradients(_apart(dout, heads), parts, _weights(parts, bias, mask))
        _split(dqkv, heads).copy_(grads)
        return dqkv, ds.sum(0)
    # So compiled, the kernel takes heads as they lie here, and finds k and v behind q: nothing is copied.
    gradients = dict.fromkeys(("dq", "dk", "dv"), dqkv)
    given = {**dict.fromkeys("qkv", qkv), "bias": bias.contiguous(), "mask": _masks(qkv, mask)}
    launch(dout=dout, **given, **gradients, dbias=dbias)
    return dqkv, dbias


def _gradients(dout: Tensor, parts: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values (3, W, H, T, D), and of the scores, by torch."""
    q, k, v = parts
    scale = q.shape[-1] ** -0.5
    dp = dout @ v.mT
    ds = weights * (dp - (weights * dp).sum(-1, keepdim=True))
    return torch.stack([ds @ k * scale, ds.mT @ q * scale, weights.mT @ dout]), ds


def _attention_grad_fake(_dout: Tensor, qkv: Tensor, bias: Tensor, _mask: Tensor | None) -> tuple[Tensor, Tensor]:
    return qkv.new_empty(qkv.shape), bias.new_empty(bias.shape)


def _saves(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 - torch gives both
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    return *_window_attention_grad(dout, *ctx.saved_tensors), None


_window_attention = operator(
    "window_attention",
    "(Tensor qkv, Tensor bias, Tensor? mask) -> Tensor",
    _attention_run,
    _attention_fake,
    _saves,
    _backward,
)
_window_attention_grad = operator(
    "window_attention_grad",
    "(Tensor dout, Tensor qkv, Tensor bias, Tensor? mask) -> (Tensor, Tensor)",
    _attention_grad_run,
    _attention_grad_fake,
)
