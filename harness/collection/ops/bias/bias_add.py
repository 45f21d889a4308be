"""Bias, y = x + bias[c] over (outer, channels, inner): rows O14 and O15. Twin of bias_add.cu.

inner = 1 is a bias for each column of a matrix (language models), outer = 1 one for each row, any other inner one for
each channel of images. All variants but `tuned` take one element a thread, so that only the way to its channel differs.
"""

from __future__ import annotations

import ctypes
import math
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
from harness.model import Case
from harness.ops import ITEMSIZE, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    return {"y": add(*widened(t.x, t.bias))}


def add(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The sum as a user writes it: x (outer, channels, inner) plus bias (channels)."""
    return x + bias.view(1, -1, 1)


OP = Op(
    "bias_add",
    "y = x + bias[c]",
    symbols={"outer": "size before the channels", "bias": "channels, one bias each", "inner": "size after them"},
    inputs=(Tensor("x", ("outer", "bias", "inner")), Tensor("bias", ("bias",))),
    outputs=(Tensor("y", ("outer", "bias", "inner")),),
    reference=reference,
)


def _needs_inner_1(case: Case) -> str | None:
    return "for inner = 1 only" if case.symbols["inner"] != 1 else needs_32_bits(case)


def _needs_outer_1(case: Case) -> str | None:
    return "for outer = 1 only" if case.symbols["outer"] != 1 else needs_32_bits(case)


@OP.variant("eager", "torch's broadcast addition", role="baseline", devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (add(t.x, t.bias),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape, where both divisors are constants."""
    function = compiled(add)
    return lambda t: (function(t.x, t.bias),)


@OP.variant("index64", "64-bit division and modulo for each element", role="published", rows=("O14", "O15"))
def index64(ctx: Context) -> Launch:
    """The text's general kernel, for tensors of any size."""
    sizes = ctypes.c_uint64(ctx.s.bias), ctypes.c_uint64(ctx.s.inner)
    return _one_element(ctx, "bias_add_index64", ctypes.c_uint64(_elements(ctx)), *sizes)


@OP.variant(
    "index32",
    "32-bit division and modulo",
    role="published",
    rows=("O14", "O15"),
    unsupported=needs_32_bits,
)
def index32(ctx: Context) -> Launch:
    """`index64` with half the bits."""
    return _one_element_32(ctx, "bias_add_index32", ctx.s.bias, ctx.s.inner)


@OP.variant(
    "index32_early",
    "as index32, with a branch that keeps the load of x before the divisions, where index64 has it",
    rows=("O15",),
    unsupported=needs_32_bits,
)
def index32_early(ctx: Context) -> Launch:
    """What 32 bits gain if the compiler changes nothing else."""
    return _one_element_32(ctx, "bias_add_early_index32", ctx.s.bias, ctx.s.inner)


@OP.variant("fastdiv", "each division as a multiplication", unsupported=needs_32_bits)
def fastdiv(ctx: Context) -> Launch:
    """The host computes the multipliers; the kernel has 32 bits."""
    sizes = ctypes.c_uint32(_elements(ctx)), ctypes.c_uint32(ctx.s.bias)
    return _one_element(ctx, "bias_add_fastdiv", *sizes, *_divisor(ctx.s.bias, 32), *_divisor(ctx.s.inner, 32))


@OP.variant(
    "inner1", "a modulo and no division, for inner = 1", role="published", rows=("O14",), unsupported=_needs_inner_1
)
def inner1(ctx: Context) -> Launch:
    """The text's special kernel for rows of channels, in 32 bits."""
    return _one_element_32(ctx, "bias_add_inner1", ctx.s.bias)


@OP.variant(
    "outer1", "a division and no modulo, for outer = 1", role="published", rows=("O14",), unsupported=_needs_outer_1
)
def outer1(ctx: Context) -> Launch:
    """The text's special kernel for columns of channels, in 32 bits."""
    return _one_element_32(ctx, "bias_add_outer1", ctx.s.inner)


@OP.variant("tuned", "16-byte packs at any sizes, multiplications in place of divisions", rows=("O14", "O15"))
def tuned(ctx: Context) -> Launch:
    """A thread divides for its pack's first element; bias_add.cu says how the other channels follow from the first."""
    size = ITEMSIZE[ctx.case.dtype]
    pack, n = PACK_BYTES // size, _elements(ctx)
    bits = 32 if n < LIMIT_32 else 64
    word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    macros = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[bits]}
    kernel = ctx.kernel("bias_add.cu", "bias_add_any", macros)
    whole_rows = ctx.s.inner == 1 and ctx.s.bias % pack == 0
    by_rows = ctx.kernel("bias_add.cu", "bias_add_rows", macros) if whole_rows else None
    grid, channels = blocks(-(-n // pack)), (word(ctx.s.bias), *_divisor(ctx.s.bias, bits))
    inner = word(ctx.s.inner), *_divisor(ctx.s.inner, bits)

    def launch(t: Tensors) -> None:
        if by_rows and aligned(t.x, t.bias, t.y):
            by_rows(grid, BLOCK, t.x, t.bias, t.y, word(n), *channels)
        else:
            vector = ctypes.c_int(aligned(t.x, t.y))
            kernel(grid, BLOCK, t.x, t.bias, t.y, word(n), vector, *channels, *inner)

    return launch


def _one_element(ctx: Context, entry: str, *scalars: Any) -> Launch:
    """A launch of one of the kernels that take one element a thread."""
    kernel = ctx.kernel("bias_add.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid = blocks(_elements(ctx))
    return lambda t: kernel(grid, BLOCK, t.x, t.bias, t.y, *scalars)


def _one_element_32(ctx: Context, entry: str, *sizes: int) -> Launch:
    return _one_element(ctx, entry, *(ctypes.c_uint32(size) for size in (_elements(ctx), *sizes)))


def _elements(ctx: Context) -> int:
    return math.prod(ctx.case.symbols.values())


def _divisor(size: int, bits: int) -> tuple[Any, Any]:
    """The multiplier and the shift that divide by `size`; any will do for an empty tensor, which launches nothing."""
    return cuda.fast_divisor(max(1, size), bits)
