"""Dropout, alone and with a bias and a residual. What is kept is remembered as one bit an element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.collection.nn import _kernels
from harness.collection.nn._kernels import Described, OpKernels, allocator, capturing, like
from harness.collection.nn._operators import operator, without_autocast
from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, Keep
from harness.collection.ops.dropout._philox import GROUP, draws

_CALLS: dict[int, Tensor] = {}
"""The number of the next call on each device, (1,) of int64, in the device's memory: a captured graph advances it.

Devices are named by torch's index; a CPU's is -1.
"""
_LAST: dict[int, tuple[int, torch.cuda.Stream]] = {}
"""The stream of the last call on each device: its handle and itself."""
_NO_BACKWARD = -1  # torch's number of the backward that is under way, where there is none
_SEEDS = 2**63  # operators take signed integers
_SEED = [torch.initial_seed() % _SEEDS]


def manual_seed(seed: int) -> None:
    """Begin the random numbers of dropout anew: equal seeds and equal calls after them give equal masks.

    seed: 0 to 2^63 - 1. torch.manual_seed() changes nothing here. Before the first call, the seed is the one that torch
    had when this package was imported. A captured graph goes on with the seed that it was captured with; the number of
    the call that it goes on from is set to 0. Raises ValueError for other seeds.
    """
    if not 0 <= seed < _SEEDS:
        raise ValueError(f"the seed is {seed}; it must be from 0 to 2^63 - 1")
    _SEED[0] = seed
    for call in _CALLS.values():
        call.zero_()


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """X with a share `p` of its elements, chosen at random, set to 0, and the other elements multiplied by 1 / (1 - p).

    The random numbers depend on manual_seed(), the number of the call and an element's index alone, on every device.
    Calls have their numbers in the order in which the host makes them, on all streams together: a call waits for the
    last call if that is on another stream. A graph draws anew at each replay; let no other call run beside a replay,
    since the numbers of both would depend on chance. The share is the nearest one to p that 16 bits hold.
    Raises ValueError for p below 0 or above 1, or for integers. Raises RuntimeError inside of a backward, where
    torch.utils.checkpoint computes anew: it can't repeat our random numbers, so don't checkpoint what has dropout.
    """
    _checked(x, p)
    if not training or p == 0:
        return x
    call, seed = _numbers(x)
    y = _dropout(x, call, p, seed)
    call.add_(1)
    return y


def dropout_add(x: Tensor, residual: Tensor, p: float, training: bool = True) -> Tensor:
    """The sum of dropout(x) and residual, in one kernel, rounded once. residual: as x. Randomness is as in dropout().

    Raises ValueError for p below 0 or above 1, or a residual of another shape or type.
    """
    _checked(x, p)
    _alike(x, residual)
    if not training or p == 0:
        return x + residual
    call, seed = _numbers(x)
    y = _dropout_add(x, residual, call, p, seed)
    call.add_(1)
    return y


def bias_dropout_residual(x: Tensor, bias: Tensor, residual: Tensor, p: float, training: bool = True) -> Tensor:
    """The sum of dropout(x + bias) and residual, in one kernel, rounded once. x, residual: (..., C); bias: (C,).

    bias is rounded to the type of x. Randomness is as in dropout().
    Raises ValueError for p below 0 or above 1, or for other shapes or a residual of another type.
    """
    _checked(x, p)
    _alike(x, residual)
    if not x.ndim or bias.shape != x.shape[-1:]:
        raise ValueError(f"bias is {tuple(bias.shape)}; for x of {tuple(x.shape)} it must be {tuple(x.shape[-1:])}")
    if not training or p == 0:
        return x + bias.to(x.dtype) + residual
    call, seed = _numbers(x)
    y = _bias_dropout_residual(x, bias.to(x.dtype), residual, call, p, seed)
    call.add_(1)
    return y


def _checked(x: Tensor, p: float) -> None:
    if not x.dtype.is_floating_point:
        raise ValueError(f"x is of {x.dtype}; dropout takes floating-point numbers")
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; it is a share, from 0 to 1")


def _alike(x: Tensor, residual: Tensor) -> None:
    if x.shape != residual.shape or x.dtype != residual.dtype:
        found = f"{tuple(residual.shape)} of {residual.dtype}"
        raise ValueError(f"the residual is {found}; x is {tuple(x.shape)} of {x.dtype}: make them alike")


def _numbers(x: Tensor) -> tuple[Tensor, int]:
    """The number of the next call on the device of x, and the seed."""
    if x.is_cuda and not torch.compiler.is_compiling() and not capturing():
        _in_turn(x.get_device())
    call = _CALLS.get(x.get_device())
    if call is None:
        # Made in inference mode, it couldn't be advanced outside of it.
        with torch.inference_mode(False):
            call = _CALLS[x.get_device()] = torch.zeros(1, dtype=torch.int64, device=x.device)
    return call, _SEED[0]


def _in_turn(device: int) -> None:
    """Let the current stream wait for the last call, if that was on another stream: calls have numbers one by one."""
    handle = _kernels._STREAM(device)
    last = _LAST.get(device)
    if last is None or last[0] != handle:
        stream = torch.cuda.current_stream(device)
        if last is not None:
            stream.wait_stream(last[1])
        _LAST[device] = handle, stream


def _bits(x: Tensor) -> Tensor:
    return allocator(x)(((x.numel() + 31) // 32,), (1,), torch.int32)


def _refuse_backward() -> None:
    """Raise RuntimeError inside of a backward, where random numbers would have to be drawn again."""
    if torch._C._current_graph_task_id() != _NO_BACKWARD:
        raise RuntimeError(
            "dropout of harness.nn is called inside of a backward, as torch.utils.checkpoint does; it would draw "
            "another mask than in the forward. Don't checkpoint what has dropout, or use torch's dropout there"
        )


def _drawn(x: Tensor, call: Tensor, p: float, seed: int) -> Tensor:
    """The mask that our kernel draws, as booleans in the shape of x. The host waits for the number of the call."""
    groups = torch.arange(-(-x.numel() // GROUP[NARROW]), device=x.device)
    numbers = draws(seed, int(call), groups, NARROW).view(-1)[: x.numel()]
    return (numbers < Keep(p, NARROW).threshold).view(x.shape)


@without_autocast
def _by_torch(x: Tensor, mask: Tensor, p: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The kernels' y and their bits, given the mask."""
    wide = x if x.dtype == torch.float64 else x.float()
    y = torch.where(mask, wide * Keep(p, NARROW).scale, 0)
    y = y if residual is None else y + residual
    return y.to(x.dtype).contiguous(), pack(mask.flatten())


# ---- Operators. Their outputs are y and the bits.


def _elements(x: Tensor, p: float, seed: int = 0) -> Described:
    return Described({"N": x.numel()}, {"p": p}, seed)


def _columns(x: Tensor, p: float, seed: int) -> Described:
    columns = x.shape[-1]
    return Described({"R": x.numel() // max(1, columns), "C": columns}, {"p": p}, seed)


_dropouts, _dropout_adds = OpKernels("dropout", _elements), OpKernels("dropout_add", _elements)
_bias_dropout_residuals = OpKernels("bias_dropout_residual", _columns)
_dropout_grads = OpKernels("dropout_grad", _elements)


def _dropout_run(x: Tensor, call: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    launch = _dropouts(x, p, seed)
    if launch is None:
        return _by_torch(x, _drawn(x, call, p, seed), p)
    x = x.contiguous()
    y, bits = like(x), _bits(x)
    launch(x, call, y, bits)
    return y, bits


def _dropout_add_run(x: Tensor, residual: Tensor, call: Tensor, p: float, seed: int) -> tuple[Tensor, Tensor]:
    launch = _dropout_adds(x, p, seed)
    if launch is None:
        return _by_torch(x, _drawn(x, call, p, seed), p, residual)
    x = x.contiguous()
    y, bits = like(x), _bits(x)
    launch(x, residual.contiguous(), call, y, bits)
    return y, bits


def _bias_dropout_residual_run(  # noqa: PLR0913, PLR0917 - an operator takes what its kernel takes
    x: Tensor, bias: Tensor, residual: Tensor, call: Tensor, p: float, seed: int
) -> tuple[Tensor, Tensor]:
    launch = _bias_dropout_residuals(x, p, seed)
    if launch is None:
        wide = x + bias if x.dtype == torch.float64 else x.float() + bias.float()
        y, bits = _by_torch(wide, _drawn(x, call, p, seed), p, residual)
        return y.to(x.dtype), bits
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


@without_autocast
def _dropout_grad_by_torch(dy: Tensor, bits: Tensor, p: float) -> Tensor:
    kept = unpack(bits, dy.numel()).view(dy.shape)
    wide = dy if dy.dtype == torch.float64 else dy.float()
    return torch.where(kept, wide * Keep(p, NARROW).scale, 0).to(dy.dtype).contiguous()


def _saves(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.p = inputs[-2]
    ctx.save_for_backward(output[1])


def _gradient(ctx: Any, dy: Tensor) -> Tensor:
    return _dropout_grad(dy, *ctx.saved_tensors, ctx.p)


def _dropout_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _gradient(ctx, dy), None, None, None


def _dropout_add_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    return _gradient(ctx, dy), dy, None, None, None


def _bias_dropout_residual_backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    dx = _gradient(ctx, dy)
    return dx, dx.reshape(-1, dx.shape[-1]).sum(0), dy, None, None, None


_RESULT = "Tensor call, float p, int seed) -> (Tensor, Tensor)"
_dropout = operator(
    "dropout", f"(Tensor x, {_RESULT}", _dropout_run, _fake, _saves, _dropout_backward, check=_refuse_backward
)
_dropout_add = operator(
    "dropout_add",
    f"(Tensor x, Tensor residual, {_RESULT}",
    _dropout_add_run,
    _fake,
    _saves,
    _dropout_add_backward,
    check=_refuse_backward,
)
_bias_dropout_residual = operator(
    "bias_dropout_residual",
    f"(Tensor x, Tensor bias, Tensor residual, {_RESULT}",
    _bias_dropout_residual_run,
    _fake,
    _saves,
    _bias_dropout_residual_backward,
    check=_refuse_backward,
)
_dropout_grad = operator(
    "dropout_grad", "(Tensor dy, Tensor bits, float p) -> Tensor", _dropout_grad_run, lambda dy, *_: like(dy)
)
