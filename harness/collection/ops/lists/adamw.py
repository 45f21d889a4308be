"""A step of AdamW on a list of parameters: row S4. Twin of adamw.cu.

`weights` are the float32 numbers that the step updates. With master = none they are the parameters themselves, and only
the gradients have the case's type. With master = float32 they are the master weights of a model in the case's type,
whose parameters, `copies`, the step writes too. The number of the step, counted from 1, lies in device memory, where a
graph finds it. It is given in all variants: torch's optimizers count with a kernel of their own, which isn't timed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY, CUDA_TYPE
from harness.collection.ops.lists import _models
from harness.collection.ops.lists._tables import BLOCK, Tabled, side_by_side
from harness.ops import (
    FLOATS,
    Choice,
    Compile,
    Context,
    Expected,
    Extremes,
    Launch,
    Op,
    Shape,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
FLOAT1, FLOAT2 = (ctypes.c_float(beta).value for beta in (BETA1, BETA2))
"""The betas as float32, which torch's fused kernel and ours compute with: 1 - beta is 0.001 less 1.3e-5 of it."""
STEP = 10.0
"""The number of the step that is measured."""
ELEMENTS = 4
"""Elements that a thread of `tuned` has in flight, of each list: one access, with which a plain copy is fastest."""
TEXT_ELEMENTS = 8
"""Elements that a thread of `fused` takes."""
LISTS = ("weights", "grads", "exp_avg", "exp_avg_sq", "copies")


def _copies(symbols: Symbols) -> list[Shape]:
    return _models.shapes(symbols) if symbols["master"] == "float32" else []


def make(ctx: Context) -> dict[str, Any]:
    """Random weights, gradients and first moments; second moments above 0; the number of the step."""
    import torch

    def normal(dtype: torch.dtype) -> list[torch.Tensor]:
        shapes = _models.shapes(ctx.case.values)
        return [torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=dtype) for shape in shapes]

    return {
        "weights": normal(torch.float32),
        "grads": normal(ctx.dtype),
        "exp_avg": normal(torch.float32),
        "exp_avg_sq": [value.square_().add_(0.01) for value in normal(torch.float32)],
        "step": torch.full((1,), STEP, device=ctx.device),
    }


def stepped(
    values: tuple[torch.Tensor, ...], step: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weight, first moment, second moment) after a step, in float64, from weight, gradient and moments before it.

    The betas are float32 numbers, also in the corrections of bias.
    """
    weight, grad, mean, square = (value.double() for value in values)
    mean = FLOAT1 * mean + (1 - FLOAT1) * grad
    square = FLOAT2 * square + (1 - FLOAT2) * grad * grad
    root = (square / (1 - FLOAT2**step)).sqrt() + EPSILON
    return weight * (1 - RATE * decay) - RATE / (1 - FLOAT1**step) * mean / root, mean, square


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each tensor of each list, within what rounding of float32 can do to it.

    A moment is a sum of two terms, whose rounding depends on their sizes. torch's ways differ by 1.3e-5 in 1 - beta2,
    and in the correction of bias, since only some of them round beta2 to float32 first.
    """
    import torch

    unit, step = torch.finfo(torch.float32).eps, float(t.before.step)
    for i, values in enumerate(
        zip(t.before.weights, t.before.grads, t.before.exp_avg, t.before.exp_avg_sq, strict=True)
    ):
        weight, mean, square = stepped(values, step, ctx.s.weight_decay)
        grad = values[1].double()
        of_mean = 4 * unit * (values[2].double().abs() + grad.abs())
        of_square = 4 * unit * square + 2e-5 * (1 - BETA2) * grad * grad
        size = RATE / (1 - BETA1**step) / ((square / (1 - BETA2**step)).sqrt() + EPSILON)
        of_weight = 4 * unit * weight.abs() + size * (of_mean + mean.abs() * (of_square / square + 2e-5))
        yield Expected(f"exp_avg[{i}]", t.exp_avg[i], mean, of_mean)
        yield Expected(f"exp_avg_sq[{i}]", t.exp_avg_sq[i], square, of_square)
        yield Expected(f"weights[{i}]", t.weights[i], weight, of_weight)
        if t.copies:
            kind = torch.finfo(t.copies[i].dtype)
            rounding = kind.eps * weight.abs().clamp(min=kind.tiny)
            yield Expected(f"copies[{i}]", t.copies[i], weight, of_weight + rounding)


def _float32(name: str) -> Tensor:
    return Tensor(name, _models.shapes, "float32", inplace=True)


OP = Op(
    "adamw",
    "a step of AdamW on a list of tensors, with its moments; master weights where the model is in another type",
    symbols=_models.SYMBOLS,
    defaults=_models.DEFAULTS,
    choices={
        "tensors": _models.choice(),
        "weight_decay": Choice("the weights' own decay, times the learning rate", low=0.0, high=1.0, default=0.01),
        "master": Choice("type of master weights, beside parameters in the case's type", ("none", "float32")),
    },
    inputs=(
        *(_float32("weights"), Tensor("grads", _models.shapes), _float32("exp_avg"), _float32("exp_avg_sq")),
        Tensor("step", (1,), "float32"),
    ),
    outputs=(Tensor("copies", _copies),),
    dtypes=FLOATS,
    make=make,
    extremes=Extremes(
        exempt={
            **dict.fromkeys(("infinity", "minus_infinity", "masked"), "x - beta * x, which kernels have, is NaN there"),
            "exp_avg_sq": "a mean of squares is above 0",
            "step": "it counts the steps",
        },
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**50),
        why="squares of gradients are in float32",
    ),
    check=check,
)

_TORCH: dict[str, Any] = {"role": "baseline", "devices": ANY, "rows": ("S4",)}
_State = tuple["list[torch.Tensor]", "list[torch.Tensor]", "list[torch.Tensor]", "list[torch.Tensor]"]
"""Weights, gradients, first and second moments, all in float32."""
_Way = Callable[[_State, "torch.Tensor", float], object]
"""A step of torch on a state, with the number of the step, and a weight decay."""


def _with_casts(ctx: Context, way: _Way) -> Launch:
    """A step of torch, with gradients made float32 before it and copies made after it, each in one call."""
    import torch

    wide = []
    if ctx.dtype != torch.float32:
        wide = [torch.empty(shape, device=ctx.device) for shape in _models.shapes(ctx.case.values)]
    decay = ctx.s.weight_decay

    def launch(t: Tensors) -> None:
        if wide:
            torch._foreach_copy_(wide, t.grads)
        way((t.weights, wide or t.grads, t.exp_avg, t.exp_avg_sq), t.step, decay)
        if t.copies:
            torch._foreach_copy_(t.copies, t.weights)

    return launch


@OP.variant("eager", "torch's fused AdamW; halves are cast before and after it", **_TORCH)
def eager(ctx: Context) -> Launch:
    """What AdamW(fused=True) calls, but for its counting of steps."""
    return _with_casts(ctx, _fused)


def _fused(state: _State, step: torch.Tensor, decay: float) -> None:
    import torch

    numbers = {"lr": RATE, "beta1": BETA1, "beta2": BETA2, "weight_decay": decay, "eps": EPSILON}
    steps = [step.view(())] * len(state[0])
    torch._fused_adamw_(*state, [], steps, amsgrad=False, maximize=False, **numbers)


@OP.variant("eager_foreach", "torch's foreach calls, each for the whole list; halves are cast as in eager", **_TORCH)
def eager_foreach(ctx: Context) -> Launch:
    """The calls that AdamW(foreach=True, capturable=True) makes."""
    return _with_casts(ctx, _foreach)


def _corrections(step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(factor of the first moment's root, divisor of that root): numbers on the device, as float32."""
    wide = step.double().view(())
    return (-(1 - BETA1**wide) / RATE).float(), (1 - BETA2**wide).sqrt().float()


def _foreach(state: _State, step: torch.Tensor, decay: float) -> None:
    import torch

    weights, grads, means, squares = state
    factor, root = _corrections(step)
    torch._foreach_mul_(weights, 1 - RATE * decay)
    torch._foreach_lerp_(means, grads, 1 - BETA1)
    torch._foreach_mul_(squares, BETA2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - BETA2)
    divisors = torch._foreach_sqrt(squares)
    torch._foreach_div_(divisors, root)
    torch._foreach_add_(divisors, EPSILON)
    torch._foreach_mul_(divisors, factor)
    torch._foreach_addcdiv_(weights, means, divisors)


@OP.variant("eager_loop", "torch's calls for one tensor after the other; halves are cast as in eager", **_TORCH)
def eager_loop(ctx: Context) -> Launch:
    """The calls that AdamW(foreach=False) makes."""
    return _with_casts(ctx, _loop)


def _loop(state: _State, step: torch.Tensor, decay: float) -> None:
    factor, root = _corrections(step)
    for weight, grad, mean, square in zip(*state, strict=True):
        weight.mul_(1 - RATE * decay)
        mean.lerp_(grad, 1 - BETA1)
        square.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        weight.addcdiv_(mean, (square.sqrt() / root).add_(EPSILON).mul_(factor))


@compiled_variants(
    OP, "torch.compile of eager_foreach", returns=False, rows=("S4",), unsupported=_models.too_long_to_compile
)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor fuses the calls, and works on many tensors in one kernel."""
    import torch

    decay = ctx.s.weight_decay

    def step(state: _State, copies: list[torch.Tensor], number: torch.Tensor) -> None:
        weights, grads, means, squares = state
        _foreach((weights, [grad.float() for grad in grads], means, squares), number, decay)
        if copies:
            torch._foreach_copy_(copies, weights)

    function = compiled(step)
    return lambda t: function((t.weights, t.grads, t.exp_avg, t.exp_avg_sq), t.copies, t.step)


_FUSED = Tabled(partial(side_by_side, elements=TEXT_ELEMENTS), LISTS)
_TUNED = Tabled(partial(side_by_side, elements=ELEMENTS), LISTS)


def _launch(ctx: Context, entry: str, tables: Tabled) -> Launch:
    """One launch for the whole list. Gradients have no scale here; `harness.nn` has steps where they do."""
    copy = int(ctx.s.master == "float32")
    scalar = CUDA_TYPE[ctx.case.dtype]
    kernel = ctx.kernel("adamw.cu", entry, {"SCALAR": scalar, "COPY": copy, "FOURS": ELEMENTS // 4})
    decay = RATE * ctx.s.weight_decay
    numbers = RATE, decay, FLOAT1, FLOAT2, math.log(FLOAT1), math.log(FLOAT2), EPSILON
    scalars = [ctypes.c_float(number) for number in numbers]

    def launch(t: Tensors) -> None:
        table = tables.current(ctx, t)
        kernel(table.blocks, BLOCK, table.rows, t.step, ctypes.c_uint32(table.whole), *scalars, None)

    return launch


@OP.variant(
    "fused",
    "one launch for the whole list, one element of each tensor at a time",
    role="published",
    rows=("S4",),
    encode=_FUSED.encode,
)
def fused(ctx: Context) -> Launch:
    """The text's multi-tensor step; the text shows no kernel."""
    return _launch(ctx, "adamw_fused", _FUSED)


@OP.variant("tuned", "the same, in packs of 16 bytes, one of each list a thread", rows=("S4",), encode=_TUNED.encode)
def tuned(ctx: Context) -> Launch:
    """Four elements an access, and pieces half as long."""
    return _launch(ctx, "adamw_tuned", _TUNED)
