"""A bias for each row and each column, y = x + rows[r] + columns[c] over (R, C): row O16. Twin of two_biases.cu.

An element needs both i / C and i % C, two divisions by the same number, which the text turns into one. All variants
but `tuned` take one element a thread, add in float32 and differ in nothing but their divisions.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import (
    ANY,
    BLOCK,
    CUDA_TYPE,
    INDEX_TYPE,
    LIMIT_32,
    PACK_BYTES,
    aligned,
    blocks,
    needs_32_bits,
    widened,
)
from harness.model import Traffic
from harness.ops import ITEMSIZE, Compile, Context, Extremes, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    return {"y": add(*widened(t.x, t.rows, t.columns))}


def add(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """The sum as a user writes it: x (R, C), rows (R), columns (C)."""
    return x + rows.unsqueeze(1) + columns


OP = Op(
    "two_biases",
    "y = x + rows[r] + columns[c]",
    symbols={"R": "rows, one bias each", "C": "columns, one bias each"},
    inputs=(Tensor("x", ("R", "C")), Tensor("rows", ("R",)), Tensor("columns", ("C",))),
    outputs=(Tensor("y", ("R", "C")),),
    reference=reference,
    extremes=Extremes(
        largest={"float32": 2.0**120, "bfloat16": 2.0**120, "float16": 2.0**14},
        why="a sum of two of the three terms may be rounded to the dtype",
    ),
    # As bias_residual's: eager rounds a sum of two, which may be far larger than the sum of all three.
    tolerance={"float32": (1e-6, 2**-21), "float16": (1e-3, 2**-8), "bfloat16": (8e-3, 2**-5)},
)

_O16: dict[str, Any] = {"role": "published", "rows": ("O16",)}


def two_passes(symbols: Symbols, itemsize: int) -> Traffic:
    """There are two kernels: the first writes x + rows and the second reads it."""
    tensor = symbols["R"] * symbols["C"] * itemsize
    return Traffic(read=2 * tensor + (symbols["R"] + symbols["C"]) * itemsize, written=2 * tensor)


@OP.variant("eager", "two additions, two kernels", role="baseline", devices=ANY, returns=True, traffic=two_passes)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (add(t.x, t.rows, t.columns),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape, where the divisor is a constant."""
    function = compiled(add)
    return lambda t: (function(t.x, t.rows, t.columns),)


@OP.variant("divmod", "row = i / C, column = i % C, in 32 bits", unsupported=needs_32_bits, **_O16)
def divmod_(ctx: Context) -> Launch:
    """The text before. Compilers of today make one division of it; see two_biases.cu."""
    return _one_element(ctx, "two_biases_divmod", ctypes.c_uint32)


@OP.variant("divmod64", "the same in 64 bits", **_O16)
def divmod64(ctx: Context) -> Launch:
    """The text before, for tensors of any size."""
    return _one_element(ctx, "two_biases_divmod64", ctypes.c_uint64)


@OP.variant("twice", "divmod, kept from becoming one division, in 32 bits", unsupported=needs_32_bits, **_O16)
def twice(ctx: Context) -> Launch:
    """The text before, as a compiler without that optimisation has it: the kernel is given C twice."""
    return _one_element(ctx, "two_biases_twice", ctypes.c_uint32)


@OP.variant("twice64", "the same in 64 bits", **_O16)
def twice64(ctx: Context) -> Launch:
    """`twice`, for tensors of any size."""
    return _one_element(ctx, "two_biases_twice64", ctypes.c_uint64)


@OP.variant("divmul", "row = i / C, column = i - row * C, in 32 bits", unsupported=needs_32_bits, **_O16)
def divmul(ctx: Context) -> Launch:
    """The text after."""
    return _one_element(ctx, "two_biases_divmul", ctypes.c_uint32)


@OP.variant("divmul64", "the same in 64 bits", **_O16)
def divmul64(ctx: Context) -> Launch:
    """The text after, for tensors of any size."""
    return _one_element(ctx, "two_biases_divmul64", ctypes.c_uint64)


@OP.variant("tuned", "16-byte packs at any sizes, a multiplication in place of the division")
def tuned(ctx: Context) -> Launch:
    """It loads packs of biases where rows and addresses allow it; otherwise a pack may go on in the next row."""
    n, pack = _elements(ctx), PACK_BYTES // ITEMSIZE[ctx.case.dtype]
    bits = 32 if n < LIMIT_32 else 64
    word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    macros = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[bits]}
    kernel = ctx.kernel("two_biases.cu", "two_biases_any", macros)
    whole = ctx.kernel("two_biases.cu", "two_biases_whole", macros) if ctx.s.C % pack == 0 else None
    # An empty tensor may have rows of length 0; nothing is launched for it.
    grid, size = blocks(-(-n // pack)), (word(ctx.s.C), *cuda.fast_divisor(max(1, ctx.s.C), bits))

    def launch(t: Tensors) -> None:
        tensors = t.x, t.rows, t.columns, t.y
        if whole and aligned(t.x, t.columns, t.y):
            whole(grid, BLOCK, *tensors, word(n), *size)
        else:
            kernel(grid, BLOCK, *tensors, word(n), ctypes.c_int(aligned(t.x, t.y)), *size)

    return launch


def _one_element(ctx: Context, entry: str, word: type[ctypes.c_uint32 | ctypes.c_uint64]) -> Launch:
    """A launch of one of the kernels that take one element a thread, with indexes of this type."""
    kernel = ctx.kernel("two_biases.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, scalars = blocks(_elements(ctx)), (word(_elements(ctx)), word(ctx.s.C), word(ctx.s.C))
    return lambda t: kernel(grid, BLOCK, t.x, t.rows, t.columns, t.y, *scalars)


def _elements(ctx: Context) -> int:
    elements: int = ctx.s.R * ctx.s.C
    return elements
