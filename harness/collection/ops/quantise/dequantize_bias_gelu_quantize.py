"""From an int8 matrix product to the input of the next one, y = gelu(acc * sx * sw + bias) / sy in int8: row S14.

Twin of dequantize_bias_gelu_quantize.cu. _dequantise.py says what the tensors are, _integers.py how y is rounded. GELU
is the exact one, with the error function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.quantise import _dequantise as dequantise
from harness.collection.ops.quantise import _integers as integers
from harness.collection.ops.quantise import _tiles
from harness.collection.ops.quantise._steps import Steps, traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_STEEPEST = 1.13
"""The steepest slope of GELU."""
_GELU = 2**-21
"""What a GELU in float32 may be off by: as a share of its argument, since the share below it ends at 1."""


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be: GELU of a sum that may be a little off. `separate` rounds it to the case's type, too."""
    import torch

    stepwise = ctx.case.variant == "separate"
    for part in dequantise.parts(ctx):
        x = dequantise.wanted(ctx, t.before, part, stepwise=stepwise)
        value, size = torch.nn.functional.gelu(x.value), x.value.abs()
        error = _STEEPEST * x.error + _GELU * size
        if stepwise:
            error = error + dequantise.half_unit(ctx) * (_STEEPEST * size + value.abs())
        of = integers.Approximate(value, error)
        yield integers.expected("y", t.y[part], of, t.before.sy, part.start * ctx.s.C)


_SIZE = 4
"""Elements of a unit: 16 bytes of int32."""

OP = Op(
    "dequantize_bias_gelu_quantize",
    "y = gelu(acc * sx * sw + bias) / sy as 8-bit integers, acc in int32",
    symbols=dequantise.SYMBOLS,
    choices=dequantise.CHOICES,
    inputs=(*dequantise.PRODUCT, dequantise.SY),
    outputs=(Tensor("y", ("M", "C"), "int8"),),
    make=dequantise.make,
    check=check,
    extremes=dequantise.extremes("sx", "sw", "sy"),
)


def _by_torch(
    acc: torch.Tensor, sx: torch.Tensor, sw: torch.Tensor, bias: torch.Tensor, sy: torch.Tensor
) -> torch.Tensor:
    import torch

    return integers.to_integers(torch.nn.functional.gelu(dequantise.add(acc, sx, sw, bias)), sy)


@OP.variant(
    "eager",
    "multiply, add, gelu; divide, round, clamp, and convert",
    role="baseline",
    rows=("S14",),
    devices=ANY,
    returns=True,
    traffic=traffic("int32 -> float32", *["float32 -> float32"] * 5, "float32 -> int8"),
)
def eager(_: Context) -> Launch:
    """Seven kernels, all in float32."""
    return lambda t: (_by_torch(t.acc, t.sx, t.sw, t.bias, t.sy),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(_by_torch)
    return lambda t: (function(t.acc, t.sx, t.sw, t.bias, t.sy),)


@OP.variant(
    "separate",
    "four kernels, one element a thread: dequantise, add the bias, gelu, quantise",
    role="published",
    rows=("S14",),
    traffic=traffic("int32 -> case", *["case -> case"] * 2, "case -> int8"),
)
def separate(ctx: Context) -> Launch:
    """The text before."""
    steps = Steps(ctx)
    one, other = steps.between()
    dequantised, biased = steps.step("dequantise"), steps.step("bias")
    activated, quantised = steps.step("gelu", columns=False), steps.step("quantise", scales=False)

    def launch(t: Tensors) -> None:
        dequantised(t.acc, t.sx, t.sw, one)
        biased(one, t.bias, other)
        activated(other, one)
        quantised(one, t.sy, t.y)

    return launch


@OP.variant("fused", "one kernel, one element a thread", role="published", rows=("S14",))
def fused(ctx: Context) -> Launch:
    """The text after, at any address."""
    return _tiles.one_element(ctx, "dequantize_bias_gelu_quantize_fused", _tensors)


@OP.variant(
    "tuned",
    "16 bytes of acc an access, four of them a thread, less where there is little; GELU in 12 instructions",
    rows=("S14",),
    tuning=_tiles.TileParameters(lambda _: _SIZE).tuning,
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where a tensor doesn't begin on 16 bytes."""
    return _tiles.in_tiles(ctx, _SIZE, _tensors, fused(ctx))


def _tensors(t: Tensors) -> tuple[torch.Tensor, ...]:
    return t.acc, t.sx, t.sw, t.bias, t.sy, t.y
