"""Floats to 8-bit integers, y = x / scale: row S14. Twin of quantize.cu.

How it rounds and saturates, and what NaN and a scale of 0 give, is said in _integers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, PACK_BYTES, blocks
from harness.collection.ops.quantise import _integers as integers
from harness.collection.ops.quantise import _tiles
from harness.collection.ops.quantise._dequantise import half_unit, parts
from harness.collection.ops.quantise._steps import traffic
from harness.model import Case
from harness.ops import ITEMSIZE, Compile, Context, Expected, Extremes, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers, of which a few saturate. Scales of channels differ by a factor of three."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device}
    x = torch.randn((ctx.s.M, ctx.s.C), dtype=ctx.dtype, **options)
    scale = torch.rand(integers.scale_shape(ctx.case.values), **options)
    return {"x": x, "scale": (0.5 + scale) * 3.0 / 128}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be: x is exact, but `separate` writes x / scale in the type of x."""
    scale = t.before.scale
    for part in parts(ctx):
        x = t.before.x[part].double()
        lost = half_unit(ctx) if ctx.case.variant == "separate" else 0.0
        yield integers.expected("y", t.y[part], integers.Approximate(x, lost * x.abs()), scale, part.start * ctx.s.C)


OP = Op(
    "quantize",
    "y = x / scale as 8-bit integers",
    symbols={"M": "rows", "C": "channels"},
    choices={"scales": integers.SCALES},
    inputs=(Tensor("x", ("M", "C")), Tensor("scale", integers.scale_shape, "float32")),
    outputs=(Tensor("y", ("M", "C"), "int8"),),
    make=make,
    check=check,
    extremes=Extremes(exempt={"scale": "only 0 and normal numbers are scales"}),
)


@OP.variant(
    "eager",
    "divide, round, clamp, and convert",
    role="baseline",
    rows=("S14",),
    devices=ANY,
    returns=True,
    traffic=traffic("case -> float32", *["float32 -> float32"] * 2, "float32 -> int8"),
)
def eager(_: Context) -> Launch:
    """Four kernels; the first one's result is float32, as the scale is."""
    return lambda t: (integers.to_integers(t.x, t.scale),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(integers.to_integers)
    return lambda t: (function(t.x, t.scale),)


@OP.variant(
    "separate",
    "two kernels, one element a thread: divide, then round",
    role="published",
    rows=("S14",),
    traffic=traffic("case -> case", "case -> int8"),
)
def separate(ctx: Context) -> Launch:
    """What is divided is written in the type of x. All sets of buffers share that tensor."""
    import torch

    divide = _tiles.one_element(ctx, "quantize_divide", lambda t: (t.x, t.scale, t.y))
    kernel = ctx.kernel("quantize.cu", "quantize_round", _tiles.macros(ctx))
    count = _tiles.elements(ctx)
    divided = torch.empty((ctx.s.M, ctx.s.C), dtype=ctx.dtype, device=ctx.device)

    def launch(t: Tensors) -> None:
        divide(Tensors(x=t.x, scale=t.scale, y=divided))
        kernel(blocks(count), BLOCK, divided, t.y, *_tiles.numbers(ctx, count))

    return launch


@OP.variant("fused", "one kernel, one element a thread", role="published", rows=("S14",))
def fused(ctx: Context) -> Launch:
    """The text's kind of kernel, at any address."""
    return _tiles.one_element(ctx, "quantize_fused", _tensors)


def _size(case: Case) -> int:
    """Elements of 16 bytes of x."""
    return PACK_BYTES // ITEMSIZE[case.dtype]


def _columns(case: Case) -> int:
    """Columns with scales of their own."""
    return case.symbols["C"] if case.values["scales"] == "channel" else 0


def _few(count: int) -> tuple[int, int]:
    """Less work has smaller units and smaller blocks, which a search on an H200 found to be faster."""
    return (2, 64) if count <= _tiles.FEW_ELEMENTS * cuda.multiprocessors() else (4, BLOCK)


@OP.variant(
    "tuned",
    "16 bytes of x an access, four of them a thread; less where there is little",
    rows=("S14",),
    tuning=_tiles.TileParameters(_size, _columns, _few).tuning,
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where a tensor doesn't begin on 16 bytes."""
    return _tiles.in_tiles(ctx, _size(ctx.case), _tensors, fused(ctx), _columns(ctx.case))


def _tensors(t: Tensors) -> tuple[torch.Tensor, ...]:
    return t.x, t.scale, t.y
