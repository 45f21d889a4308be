"""Dropout, alone and with a bias and a residual. What is kept is remembered as one bit an element.

Each call takes a number of 63 bits from torch's generator of its device. The kernels' random numbers are a function of
that number and an element's index (Philox), so whatever repeats torch's generator repeats our masks, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.collection.nn._kernels import _STREAM, Described, OpKernels, allocator, capturing, like
from harness.collection.nn._memory import KEPT
from harness.collection.nn._operators import (
    are_distributed,
    is_eager,
    is_for_torch,
    opaque_operator,
    operator,
    without_autocast,
)
from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, Keep
from harness.collection.ops.dropout._philox import GROUP, draws
from harness.collection.ops.dropout.bias_dropout_residual import OP as BIAS_DROPOUT_RESIDUAL
from harness.collection.ops.dropout.dropout import OP as DROPOUT
from harness.collection.ops.dropout.dropout_add import OP as DROPOUT_ADD
from harness.collection.ops.dropout.dropout_grad import OP as DROPOUT_GRAD

_KEY = 0  # of Philox: the number of the call alone tells the calls from each other
_NUMBERS = 2**63 - 1
_OFFSET = 4  # by which a call moves torch's generator on: the smallest step that it allows
_TOGETHER = 1024  # numbers that are drawn at once
_PARTS = 16  # of so many numbers, which are kept
_OF_SEED, _OF_PART = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03  # odd, so that seeds and parts that are near stay apart
Gradient = Callable[[Any, Tensor], Any]
"""Function of what was saved and of the gradient of y."""


def manual_seed(seed: int) -> None:
    """Begin torch's random numbers anew, and so those of dropout. It is torch.manual_seed(), kept for earlier code."""
    torch.manual_seed(seed)


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """X with a share `p` of its elements, chosen at random, set to 0, and the other elements multiplied by 1 / (1 - p).

    The mask follows torch's generator of the device, of which each call takes one number. So torch.manual_seed() and
    torch.cuda.set_rng_state() repeat masks, torch.utils.checkpoint computes the same mask anew, a training that is
    resumed with the saved state of the generator goes on bit by bit, and a graph draws anew at each replay. The mask
    isn't the one that torch's dropout draws; and on a GPU a transform of torch.func, or a graph, has another mask than
    a plain call after the same seed. The share is the nearest one to p that 16 bits hold.
    inplace: also copy the result to x. That saves no memory, since our kernels have no way in place.
    Raises ValueError for p below 0 or above 1, or for integers.

    >>> x = torch.ones(2, 3)
    >>> _ = torch.manual_seed(0)
    >>> first = nn.dropout(x, p=0.5)
    >>> _ = torch.manual_seed(0)
    >>> torch.equal(nn.dropout(x, p=0.5), first)
    True
    """
    _checked(x, p)
    if not training or p == 0:
        return x
    y = _dropout(x, _number(x), p)
    return x.copy_(y) if inplace else y


def dropout_add(x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """The sum of dropout(x) and residual, in one kernel, rounded once. residual: as x. Randomness is as in dropout().

    Raises ValueError for p below 0 or above 1, or a residual of another shape or type.

    >>> x = torch.ones(2, 3)
    >>> nn.dropout_add(x, residual=x, p=1.0)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    _checked(x, p)
    _alike(x, residual)
    if not training or p == 0:
        return x + residual
    return _dropout_add(x, residual, _number(x), p)


def bias_dropout_residual(x: Tensor, bias: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """The sum of dropout(x + bias) and residual, in one kernel, rounded once. x, residual: (..., C); bias: (C,).

    bias is rounded to the type of x. Randomness is as in dropout().
    Raises ValueError for p below 0 or above 1, or for other shapes or a residual of another type.

    >>> x, bias = torch.ones(2, 3), torch.tensor([1.0, 2.0, 3.0])
    >>> nn.bias_dropout_residual(x, bias, residual=x, p=0.1, training=False)
    tensor([[3., 4., 5.],
            [3., 4., 5.]])
    """
    _checked(x, p)
    _alike(x, residual)
    if not x.ndim or bias.shape != x.shape[-1:]:
        must = tuple(x.shape[-1:]) or "(C,), and x (..., C)"
        raise ValueError(f"bias is {tuple(bias.shape)}; for x of {tuple(x.shape)} it must be {must}")
    if not training or p == 0:
        return x + bias.to(x.dtype) + residual
    return _bias_dropout_residual(x, bias.to(x.dtype), residual, _number(x), p)


def _checked(x: Tensor, p: float) -> None:
    if not x.dtype.is_floating_point:
        raise ValueError(f"x is of {x.dtype}; dropout takes floating-point numbers")
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; it is a share, from 0 to 1")


def _alike(x: Tensor, residual: Tensor) -> None:
    if x.shape != residual.shape or x.dtype != residual.dtype:
        found = f"{tuple(residual.shape)} of {residual.dtype}"
        raise ValueError(f"the residual is {found}; x is {tuple(x.shape)} of {x.dtype}: make them alike")


# ---- The number of a call, (1,) of int64, on the device of x.


def _number(x: Tensor) -> Tensor:
    if is_eager((x,)):
        return _draw(x)
    if is_for_torch((x,)):
        # A function that vmap knows: it draws one number for all, or one for each, or refuses to.
        return torch.randint(_NUMBERS, (1,), device=x.device)
    return _dispatched_draw(x)


def _draw(x: Tensor) -> Tensor:
    """The number. On a GPU it takes no kernel: of many numbers, drawn at once, the generator's state tells which.

    A graph draws its own, since its replays must differ.
    """
    if not x.is_cuda or capturing():
        return allocator(x)((1,), (1,), torch.int64).random_(0, _NUMBERS)
    device = x.get_device()
    generator = torch.cuda.default_generators[device]
    offset = generator.get_offset()
    generator.set_offset(offset + _OFFSET)
    part, place = divmod(offset // _OFFSET, _TOGETHER)
    return _drawn_together(device, generator.initial_seed(), part, _STREAM(device))[place]


@lru_cache(maxsize=_PARTS)
def _drawn_together(index: int, seed: int, part: int, _stream: int) -> tuple[Tensor, ...]:
    """Numbers for `_TOGETHER` calls, a function of the seed and of the part of its calls.

    Each stream has its own copy: another stream wouldn't wait until they are drawn.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(index):
        generator = torch.Generator("cuda").manual_seed((seed * _OF_SEED + part * _OF_PART) % 2**64)
        numbers = torch.empty(_TOGETHER, 2, dtype=torch.int64, device="cuda").random_(_NUMBERS, generator=generator)
        # Each begins on 16 bytes, so that launches are known by their arguments.
        return tuple(numbers[:, :1].unbind())


KEPT.append(_drawn_together.cache_clear)


# Torch knows by the tag that two calls differ, and that a checkpoint must repeat the generator's state for them.
_dispatched_draw = opaque_operator(
    "draw",
    "(Tensor x) -> Tensor",
    _draw,
    lambda x: x.new_empty(1, dtype=torch.int64),
    tags=(torch.Tag.nondeterministic_seeded,),
)


def _bits(x: Tensor) -> Tensor:
    return allocator(x)(((x.numel() + 31) // 32,), (1,), torch.int32)


def _drawn(x: Tensor, call: Tensor, p: float) -> Tensor:
    """The mask that our kernel draws, as booleans in the shape of x."""
    groups = torch.arange(-(-x.numel() // GROUP[NARROW]), device=x.device)
    numbers = draws(_KEY, call, groups, NARROW).view(-1)[: x.numel()]
    return (numbers < Keep(p, NARROW).threshold).view(x.shape)


@without_autocast
def _dropped(x: Tensor, mask: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """What the kernels make of x with this mask, rounded to the type of the residual, or else of x."""
    wide = x if x.dtype == torch.float64 else x.float()
    y = torch.where(mask, wide * Keep(p, NARROW).scale, 0)
    return y.to(x.dtype) if residual is None else (y + residual).to(residual.dtype)


def _by_torch(x: Tensor, mask: Tensor, p: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The kernels' y and their bits, given the mask."""
    return _dropped(x, mask, p, residual).contiguous(), pack(mask.flatten())


@without_autocast
def _biased(x: Tensor, bias: Tensor) -> Tensor:
    """The sum of both, not rounded to halves."""
    return x + bias if x.dtype == torch.float64 else x.float() + bias.float()


# ---- Operators. Their outputs are y and the bits.


def _elements(x: Tensor, p: float) -> Described:
    return Described({"N": x.numel()}, {"p": p}, _KEY)


def _columns(x: Tensor, p: float) -> Described:
    columns = x.shape[-1]
    return Described({"R": x.numel() // max(1, columns), "C": columns}, {"p": p}, _KEY)


_dropouts, _dropout_adds = OpKernels(DROPOUT, _elements), OpKernels(DROPOUT_ADD, _elements)
_bias_dropout_residuals = OpKernels(BIAS_DROPOUT_RESIDUAL, _columns)
_dropout_grads = OpKernels(DROPOUT_GRAD, _elements)


def _dropout_run(x: Tensor, call: Tensor, p: float) -> tuple[Tensor, Tensor]:
    launch = _dropouts(x, p)
    if launch is None:
        return _by_torch(x, _drawn(x, call, p), p)
    x = x.contiguous()
    y, bits = like(x), _bits(x)
    launch(x, call, y, bits)
    return y, bits


def _dropout_add_run(x: Tensor, residual: Tensor, call: Tensor, p: float) -> tuple[Tensor, Tensor]:
    launch = _dropout_adds(x, p)
    if launch is None:
        return _by_torch(x, _drawn(x, call, p), p, residual)
    x = x.contiguous()
    y, bits = like(x), _bits(x)
    launch(x, residual.contiguous(), call, y, bits)
    return y, bits


def _bias_dropout_residual_run(
    x: Tensor, bias: Tensor, residual: Tensor, call: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    launch = _bias_dropout_residuals(x, p)
    if launch is None:
        return _by_torch(_biased(x, bias), _drawn(x, call, p), p, residual)
    x = x.contiguous()
    y, bits = like(x), _bits(x)
    launch(x, bias.contiguous(), residual.contiguous(), call, y, bits)
    return y, bits


def _fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return like(x), _bits(x)


def _dropout_grad_run(dy: Tensor, bits: Tensor, p: float) -> Tensor:
    launch = _dropout_grads(dy, p)
    if launch is None:
        return _dropout_grad_by_torch(dy, bits, p)
    dy = dy.contiguous()
    dx = like(dy)
    launch(dy, bits, dx)
    return dx


def _dropout_grad_by_torch(dy: Tensor, bits: Tensor, p: float) -> Tensor:
    return _dropped(dy, unpack(bits, dy.numel()).view(dy.shape), p).contiguous()


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.p = inputs[-1]
    ctx.save_for_backward(output[1])


def _gradient(ctx: Any, dy: Tensor) -> Tensor:
    return _dropout_grad(dy, *ctx.saved_tensors, ctx.p)


def _gradient_formula(ctx: Any, dy: Tensor) -> Tensor:
    (bits,) = ctx.saved_tensors
    return _dropout_grad_by_torch(dy, bits, ctx.p)


def _of_x(gradient: Gradient) -> Gradient:
    return lambda ctx, dy: (gradient(ctx, dy), None, None)


def _of_x_and_residual(gradient: Gradient) -> Gradient:
    return lambda ctx, dy: (gradient(ctx, dy), dy, None, None)


def _of_x_bias_and_residual(gradient: Gradient) -> Gradient:
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        dx = gradient(ctx, dy)
        return dx, dx.reshape(-1, dx.shape[-1]).sum(0), dy, None, None

    return backward


# ---- The same by torch. Distributed tensors have torch's own masks, which each rank draws for its share.


def _dropout_formula(x: Tensor, call: Tensor, p: float) -> Tensor:
    return functional.dropout(x, p) if are_distributed((x,)) else _dropped(x, _drawn(x, call, p), p)


def _dropout_add_formula(x: Tensor, residual: Tensor, call: Tensor, p: float) -> Tensor:
    if are_distributed((x, residual)):
        return functional.dropout(x, p) + residual
    return _dropped(x, _drawn(x, call, p), p, residual)


def _bias_dropout_residual_formula(x: Tensor, bias: Tensor, residual: Tensor, call: Tensor, p: float) -> Tensor:
    if are_distributed((x, bias, residual)):
        return functional.dropout(x + bias, p) + residual
    return _dropped(_biased(x, bias), _drawn(x, call, p), p, residual)


_RESULT = "Tensor call, float p) -> (Tensor, Tensor)"
_dropout = operator(
    "dropout",
    f"(Tensor x, {_RESULT}",
    _dropout_run,
    _fake,
    _saves,
    _of_x(_gradient),
    formula=_dropout_formula,
    backward_formula=_of_x(_gradient_formula),
)
_dropout_add = operator(
    "dropout_add",
    f"(Tensor x, Tensor residual, {_RESULT}",
    _dropout_add_run,
    _fake,
    _saves,
    _of_x_and_residual(_gradient),
    formula=_dropout_add_formula,
    backward_formula=_of_x_and_residual(_gradient_formula),
)
_bias_dropout_residual = operator(
    "bias_dropout_residual",
    f"(Tensor x, Tensor bias, Tensor residual, {_RESULT}",
    _bias_dropout_residual_run,
    _fake,
    _saves,
    _of_x_bias_and_residual(_gradient),
    formula=_bias_dropout_residual_formula,
    backward_formula=_of_x_bias_and_residual(_gradient_formula),
)
_dropout_grad = operator(
    "dropout_grad",
    "(Tensor dy, Tensor bits, float p) -> Tensor",
    _dropout_grad_run,
    lambda dy, *_: like(dy),
)
