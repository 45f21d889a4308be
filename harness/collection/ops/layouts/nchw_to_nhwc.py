"""Images (N, C, H, W) made contiguous as (N, H, W, C), or the other way: row O13. Twin of nchw_to_nhwc.cu."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import BLOCK, BOTH, blocks
from harness.collection.ops.layouts import _transpose
from harness.collection.ops.layouts._transpose_ops import add_matrix_variants
from harness.collection.ops.layouts._transpose_plan import Matrices
from harness.model import Case
from harness.ops import (
    FLOATS,
    ITEMSIZE,
    Choice,
    Compile,
    Context,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_NCHW, _NHWC = ("N", "C", "H", "W"), ("N", "H", "W", "C")


def _dimensions(s: Symbols) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dimensions of x and of y, the outermost first."""
    return (_NCHW, _NHWC) if s["direction"] == "to_nhwc" else (_NHWC, _NCHW)


def _order(s: Symbols) -> list[int]:
    """For each dimension of y its number in x."""
    x, y = _dimensions(s)
    return [x.index(name) for name in y]


def _shape(side: int) -> Any:
    """A declaration: the shape of x (side 0) or of y (side 1)."""
    return lambda s: tuple(s[name] for name in _dimensions(s)[side])


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """Nothing is computed, so the case's precision is exact."""
    return {"y": t.x.permute(_order(ctx.case.values))}


OP = Op(
    "nchw_to_nhwc",
    "y[n, h, w, c] = x[n, c, h, w], or back",
    symbols={"N": "images", "C": "channels", "H": "rows of an image", "W": "columns of an image"},
    choices={"direction": Choice("which layout y has", ("to_nhwc", "to_nchw"))},
    inputs=(Tensor("x", _shape(0)),),
    outputs=(Tensor("y", _shape(1)),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


def _user(x: torch.Tensor, order: list[int]) -> torch.Tensor:
    """The copy that `x.contiguous(memory_format=...)` makes, where there is one to make.

    `x.contiguous(memory_format=torch.channels_last)` runs the same copy, and returns its memory as (N, C, H, W).
    """
    import torch

    return x.permute(order).clone(memory_format=torch.contiguous_format)


@OP.variant("eager", "torch's copy to the other memory format", role="baseline", devices=BOTH, returns=True)
def eager(ctx: Context) -> Launch:
    """The code that users write today."""
    order = _order(ctx.case.values)
    return lambda t: (_user(t.x, order),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape."""
    order = _order(ctx.case.values)
    function = compiled(lambda x: _user(x, order))
    return lambda t: (function(t.x),)


@OP.variant("naive", "one element a thread, three divisions for its coordinates", role="published", rows=("O13",))
def naive(ctx: Context) -> Launch:
    """The text before, in the order of y."""
    s = ctx.case.values
    n = math.prod(ctx.case.symbols.values())
    macro, word = _transpose.index(n)
    kernel = ctx.kernel("nchw_to_nhwc.cu", "nchw_to_nhwc_naive", _transpose.moved_as(ctx.case) | macro)
    x, y = _dimensions(s)
    strides = [math.prod(s[inner] for inner in x[x.index(name) + 1 :]) for name in y]
    grid, sizes = blocks(n), [word(size) for size in (n, *(s[name] for name in y[1:]), *strides)]
    return lambda t: kernel(grid, BLOCK, t.x, t.y, *sizes)


def _matrices(case: Case) -> Matrices:
    """One matrix for each image: channels by pixels, or the other way."""
    s = case.symbols
    channels, pixels = s["C"], s["H"] * s["W"]
    rows, cols = (channels, pixels) if case.values["direction"] == "to_nhwc" else (pixels, channels)
    return Matrices(s["N"], rows, cols, ITEMSIZE[case.dtype])


add_matrix_variants(OP, _matrices)
