"""Examples of all functions of harness.nn that take tensors, each beside the same by torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from harness import nn
from harness.collection.models import swin

Call = Callable[..., Tensor]
SEED = 3
P = 0.25


@dataclass(frozen=True)
class Example:
    """A function of ours, the same by torch in any type, and the shapes of the inputs.

    batched: the inputs whose first dimension is the batch. dtype: that kernels take. draws: whether it is random.
    """

    ours: Call
    theirs: Call
    shapes: tuple[tuple[int, ...], ...]
    batched: tuple[int, ...] = (0,)
    dtype: torch.dtype = torch.float32
    draws: bool = False


@cache
def mask(shape: tuple[int, ...], device: str) -> Tensor:
    """What dropout multiplies ones by, once torch's generator has begun anew. Nobody looks at this call."""
    torch.manual_seed(SEED)
    return nn.dropout(torch.ones(shape, dtype=torch.float64, device=device), P)


def masked(x: Tensor) -> Tensor:
    """Dropout, once torch's generator has begun anew."""
    return x * mask(tuple(x.shape), x.device.type)


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    """Running statistics that no transform knows of, as a module has them."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    channels = x.shape[1] if x.ndim > 1 else 1
    return torch.zeros(channels, dtype=wide, device=x.device), torch.ones(channels, dtype=wide, device=x.device)


def torch_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """Attention within windows, in plain torch."""
    q, k, v = qkv.unflatten(2, (3, 2, 32)).permute(2, 0, 3, 1, 4)
    return (torch.softmax(q @ k.mT * 32**-0.5 + bias, -1) @ v).transpose(1, 2).flatten(2)


def torch_partition(x: Tensor) -> Tensor:
    """Images to windows, in plain torch."""
    return swin.window_partition(x.contiguous(), 2, 1)


def torch_batch_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Batch norm by the batch's own statistics, a residual and ReLU."""
    return functional.relu(functional.batch_norm(x, None, None, weight, bias, training=True) + residual)


def ids(x: Tensor, count: int) -> Tensor:
    """A number below `count` for each row of x, which is batched or distributed as x is."""
    row = x.detach().select(-1, 0) if x.ndim else x.detach()
    return torch.ones_like(row, dtype=torch.long).cumsum(0) % count if row.ndim else row.long()


def targets(x: Tensor, count: int) -> Tensor:
    """The same, but that one row doesn't count."""
    numbers = ids(x, count)
    return numbers - 103 * (numbers == 3)


def torch_linear_cross_entropy(x: Tensor, weight: Tensor) -> Tensor:
    """The logits, and their cross-entropy."""
    return functional.cross_entropy(x @ weight.T, targets(x, 7))


def angles(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of 5 positions, which no transform knows of, as a model has them."""
    places, pairs = (torch.arange(count, device=x.device, dtype=torch.float32) for count in (5, 4))
    table = torch.outer(places, 0.5**pairs)
    return table.cos(), table.sin()


def rotated(x: Tensor, interleaved: bool = False) -> Tensor:
    """RoPE of (5, heads, 8), in plain torch."""
    cos, sin = (table[: len(x), None] for table in angles(x))
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    made = first * cos - second * sin, second * cos + first * sin
    return torch.stack(made, -1).flatten(-2) if interleaved else torch.cat(made, -1)


_ROWS, _LAST, _IMAGES = (5, 8), (8,), (2, 4, 4, 8)
EXAMPLES: dict[str, Example] = {
    "layer_norm": Example(nn.layer_norm, lambda x, w, b: functional.layer_norm(x, (8,), w, b), (_ROWS, _LAST, _LAST)),
    "rms_norm": Example(nn.rms_norm, lambda x, w: functional.rms_norm(x, (8,), w, 1e-5), (_ROWS, _LAST)),
    "softmax": Example(nn.softmax, lambda x: torch.softmax(x, -1), (_ROWS,)),
    "dropout": Example(lambda x: nn.dropout(x, P), masked, (_ROWS,), draws=True),
    "dropout_add": Example(
        lambda x, r: nn.dropout_add(x, r, P),
        lambda x, r: masked(x) + r,
        (_ROWS, _ROWS),
        (0, 1),
        draws=True,
    ),
    "bias_dropout_residual": Example(
        lambda x, b, r: nn.bias_dropout_residual(x, b, r, P),
        lambda x, b, r: masked(x + b) + r,
        (_ROWS, _LAST, _ROWS),
        (0, 2),
        draws=True,
    ),
    "batch_norm_add_relu": Example(
        lambda x, z, w, b: nn.batch_norm_add_relu(x, z, *running(x), w, b),
        torch_batch_norm,
        ((4, 3, 2, 4), (4, 3, 2, 4), (3,), (3,)),
        (0, 1),
    ),
    "window_partition": Example(lambda x: nn.window_partition(x, 2, 1), torch_partition, (_IMAGES,)),
    "window_reverse": Example(
        lambda x: nn.window_reverse(x, 4, 4, 2, 1),
        lambda x: swin.window_reverse(x.contiguous(), 4, 4, 2, 1),
        ((8, 4, 8),),
    ),
    "norm_partition": Example(
        lambda x, w, b: nn.norm_partition(x, w, b, 2, 1),
        lambda x, w, b: torch_partition(functional.layer_norm(x, (8,), w, b)),
        (_IMAGES, _LAST, _LAST),
    ),
    "window_attention": Example(nn.window_attention, torch_attention, ((4, 9, 192), (2, 9, 9)), dtype=torch.float16),
    "add_rms_norm": Example(
        lambda x, r, w: torch.cat(nn.add_rms_norm(x, r, w), -1),
        lambda x, r, w: torch.cat((functional.rms_norm(x + r, (8,), w, 1e-5), x + r), -1),
        (_ROWS, _ROWS, _LAST),
        (0, 1),
    ),
    "swiglu": Example(nn.swiglu, lambda gate, up: functional.silu(gate) * up, (_ROWS, _ROWS), (0, 1)),
    "rope": Example(
        lambda q, k: torch.cat(nn.rope(q, k, *angles(q)), -2),
        lambda q, k: torch.cat((rotated(q), rotated(k)), -2),
        ((5, 4, 8), (5, 2, 8)),
        (0, 1),
    ),
    "cross_entropy": Example(
        lambda x: nn.cross_entropy(x, targets(x, 8)).to(x.dtype),
        lambda x: functional.cross_entropy(x, targets(x, 8)),
        (_ROWS,),
    ),
    "linear_cross_entropy": Example(
        lambda x, w: nn.linear_cross_entropy(x, w, targets(x, 7)).to(x.dtype),
        torch_linear_cross_entropy,
        (_ROWS, (7, 8)),
    ),
    "embedding": Example(lambda w: nn.embedding(ids(w, 3), w), lambda w: functional.embedding(ids(w, 3), w), ((7, 8),)),
}
"""An example of each function, by its name."""
VARIANTS: dict[str, Example] = {
    "layer_norm over several dimensions": Example(
        lambda x, w, b: nn.layer_norm(x, w, b, normalized_shape=(4, 8)),
        lambda x, w, b: functional.layer_norm(x, (4, 8), w, b),
        ((5, 4, 8), (4, 8), (4, 8)),
    ),
    "layer_norm without bias": Example(nn.layer_norm, lambda x, w: functional.layer_norm(x, (8,), w), (_ROWS, _LAST)),
    "layer_norm without weight": Example(nn.layer_norm, lambda x: functional.layer_norm(x, (8,)), (_ROWS,)),
    "layer_norm with bias alone": Example(
        lambda x, b: nn.layer_norm(x, bias=b), lambda x, b: functional.layer_norm(x, (8,)) + b, (_ROWS, _LAST)
    ),
    "rms_norm over several dimensions": Example(
        lambda x, w: nn.rms_norm(x, w, normalized_shape=(4, 8)),
        lambda x, w: functional.rms_norm(x, (4, 8), w, 1e-5),
        ((5, 4, 8), (4, 8)),
    ),
    "rms_norm without weight": Example(
        lambda x: nn.rms_norm(x / 1024, eps=None),
        lambda x: functional.rms_norm(x / 1024, (8,), None, 2.0**-23),
        (_ROWS,),
    ),
    "rms_norm with torch's epsilon": Example(
        lambda x, w: nn.rms_norm(x / 1024, w, None),
        lambda x, w: functional.rms_norm(x / 1024, (8,), w, 2.0**-23),
        (_ROWS, _LAST),
    ),
    "softmax along another dimension": Example(lambda x: nn.softmax(x, 1), lambda x: torch.softmax(x, 1), ((5, 4, 8),)),
    "dropout in place": Example(lambda x: nn.dropout(x * 1, P, inplace=True), masked, (_ROWS,), draws=True),
    "dropout in evaluation": Example(lambda x: nn.dropout(x * 1, P, False), lambda x: x * 1, (_ROWS,)),
    "batch_norm in evaluation": Example(
        lambda x, z, w, b: nn.batch_norm_add_relu(x, z, *running(x), w, b, training=False),
        lambda x, z, w, b: functional.relu(functional.batch_norm(x, *running(x), w, b) + z),
        ((4, 3, 2, 4), (4, 3, 2, 4), (3,), (3,)),
        (0, 1),
    ),
    "batch_norm without statistics": Example(
        lambda x, w, b: nn.batch_norm_add_relu(x, None, None, None, w, b),
        lambda x, w, b: functional.relu(functional.batch_norm(x, None, None, w, b, training=True)),
        ((4, 3, 2, 4), (3,), (3,)),
    ),
    "add_rms_norm of which the norm is used": Example(
        lambda x, r, w: nn.add_rms_norm(x, r, w)[0],
        lambda x, r, w: functional.rms_norm(x + r, (8,), w, 1e-5),
        (_ROWS, _ROWS, _LAST),
        (0, 1),
    ),
    "swiglu of one tensor": Example(
        nn.swiglu, lambda x: functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], (_ROWS,)
    ),
    "rope of neighbours": Example(
        lambda q, k: nn.rope(q, k, *angles(q), interleaved=True)[0] + 0 * k.sum(),
        lambda q, k: rotated(q, interleaved=True) + 0 * k.sum(),
        ((5, 4, 8), (5, 2, 8)),
        (0, 1),
    ),
    "linear_cross_entropy in chunks": Example(
        lambda x, w: nn.linear_cross_entropy(x, w, targets(x, 7), chunk=2).to(x.dtype),
        torch_linear_cross_entropy,
        (_ROWS, (7, 8)),
    ),
    "embedding with padding": Example(
        lambda w: nn.embedding(ids(w, 3), w, 0), lambda w: functional.embedding(ids(w, 3), w, 0), ((7, 8),)
    ),
    "attention with masks": Example(
        lambda qkv, bias: nn.window_attention(qkv, bias, torch.ones(2, 9, 9, device=qkv.device).triu()),
        lambda qkv, bias: torch_attention(
            qkv, (bias + torch.ones(2, 1, 9, 9, device=qkv.device).triu()).repeat(len(qkv) // 2, 1, 1, 1)
        ),
        ((4, 9, 192), (2, 9, 9)),
        dtype=torch.float16,
    ),
}
"""Other ways to call the functions."""


# ---- Plain calls.


def again(function: Call) -> Call:
    """The function, with torch's generator begun anew before each call."""

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(SEED)
        return function(*inputs)

    return call


def ramp(like: Tensor) -> Tensor:
    """A tensor of this shape with numbers between -1 and 1."""
    return (torch.arange(like.numel(), device=like.device) * 7 % 13 / 6.0 - 1).to(like.dtype).view(like.shape)


def leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs as tensors whose gradient is wanted."""
    return [one.detach().clone().requires_grad_() for one in inputs]


def gradients(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of all inputs."""
    own = leaves(inputs)
    y = again(function)(*own)
    return [y, *torch.autograd.grad(y, own, ramp(y))]
