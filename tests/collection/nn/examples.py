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
