"""What an int8 matrix product in int32 stands for, y = acc * sx * sw + bias: row S14. Twin of dequantize_bias.cu.

_dequantise.py says what the tensors are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.quantise import _dequantise as dequantise
from harness.collection.ops.quantise import _tiles
from harness.collection.ops.quantise._steps import CONVERSION, Steps, traffic
from harness.ops import Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_SIZE = 4
"""Elements of a unit: 16 bytes of int32."""

OP = Op(
    "dequantize_bias",
    "y = acc * sx * sw + bias, acc in int32",
    symbols=dequantise.SYMBOLS,
    choices=dequantise.CHOICES,
    inputs=dequantise.PRODUCT,
    outputs=(Tensor("y", ("M", "C")),),
    make=dequantise.make,
    check=dequantise.check,
    extremes=dequantise.extremes("sx", "sw"),
)


def _by_torch(
    acc: torch.Tensor, sx: torch.Tensor, sw: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return dequantise.add(acc, sx, sw, bias).to(dtype)


@OP.variant(
    "eager",
    "multiply, add, and convert",
    role="baseline",
    rows=("S14",),
    devices=ANY,
    returns=True,
    traffic=traffic("int32 -> float32", "float32 -> float32", CONVERSION),
)
def eager(ctx: Context) -> Launch:
    """Three kernels; in float32 nothing is converted."""
    return lambda t: (_by_torch(t.acc, t.sx, t.sw, t.bias, ctx.dtype),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function, dtype = compiled(_by_torch), ctx.dtype
    return lambda t: (function(t.acc, t.sx, t.sw, t.bias, dtype),)


@OP.variant(
    "separate",
    "two kernels, one element a thread: dequantise, then add the bias",
    role="published",
    rows=("S14",),
    traffic=traffic("int32 -> case", "case -> case"),
)
def separate(ctx: Context) -> Launch:
    """The text before."""
    steps = Steps(ctx)
    dequantised, _ = steps.between()
    first, second = steps.step("dequantise"), steps.step("bias")

    def launch(t: Tensors) -> None:
        first(t.acc, t.sx, t.sw, dequantised)
        second(dequantised, t.bias, t.y)

    return launch


@OP.variant("fused", "one kernel, one element a thread", role="published", rows=("S14",))
def fused(ctx: Context) -> Launch:
    """The text after, at any address."""
    return _tiles.one_element(ctx, "dequantize_bias_fused", _tensors)


@OP.variant(
    "tuned",
    "16 bytes of acc an access, four of them a thread; less where there is little",
    rows=("S14",),
    tuning=_tiles.TileParameters(lambda _: _SIZE).tuning,
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where a tensor doesn't begin on 16 bytes."""
    return _tiles.in_tiles(ctx, _SIZE, _tensors, fused(ctx))


def _tensors(t: Tensors) -> tuple[torch.Tensor, ...]:
    return t.acc, t.sx, t.sw, t.bias, t.y
