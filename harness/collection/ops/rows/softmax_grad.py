"""The backward of softmax over the rows of a matrix: technique O8. Twin of softmax_grad.cu, softmax_grad_shared.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.chip import H200, MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.collection.ops.rows._row_tuning import RowParameters, plan_of
from harness.collection.ops.rows._rows import has_plan, planned
from harness.model import Case, Traffic
from harness.ops import (
    ITEMSIZE,
    Compile,
    Context,
    Expected,
    Extremes,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

# Blocks of `two_pass` and `registers` have BLOCK threads, as in softmax_grad.cu.
# Elements of a row that a thread of `registers` may keep. Of two matrices, 64 each are half of a thread's registers.
_ELEMENTS = (4, 16, 64)
_GRID = 2**31 - 1  # blocks
_KEPT = 2  # matrices of which `tuned` keeps rows
# Where `tuned` has one of them in shared memory: packs of each that a thread has at most, threads of a block, and bytes
# of shared memory for the sums of a cluster.
_MOST_PACKS, _MOST_THREADS, _SUMS = 8, 1024, 4 * 1024

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""The most that a rounding changes one of the smallest numbers. Of a float below 2^-126 all places may be lost."""


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers as dy, and the softmax of other normal numbers as y."""
    import torch

    dy, x = (torch.randn(ctx.s.M, ctx.s.N, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype) for _ in "dx")
    return {"dy": dy, "y": torch.softmax(x, dim=-1)}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The gradient in float64."""
    dy, y = t.dy.double(), t.y.double()
    return {"dx": y * (dy - (dy * y).sum(-1, keepdim=True))}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each dx must be as near to the reference as its sum and its difference allow."""
    want, allowed = reference(ctx, t.before)["dx"], allowance(ctx, t.before)
    allowed += _UNIT[ctx.case.dtype] * want.abs() + _LEAST[ctx.case.dtype]
    yield Expected("dx", t.dx, want, allowed)


def allowance(ctx: Context, t: Tensors) -> torch.Tensor:
    """The error (M, N) that dx may have before it is rounded to its dtype, in float64.

    dx is the difference of y * dy and y * sum, and may be far smaller than they are. A unit is 2**-24 of a number: the
    most that a rounding to float32 changes it. Allowed are:
    - 2 units of y * dy;
    - 16 units of y * (the sum of |dy * y|) for the sum: chains of k additions err by about 0.2 * sqrt(k) units of it,
      and k is at most a few thousand. A sum that lacks one element of 2**18 is off by 64 units;
    - for `eager` on halves, which rounds y * dy to the dtype before the addition, the most that this changes.
    """
    dy, y = t.dy.double(), t.y.double()
    products = (dy * y).abs()
    total = products.sum(-1, keepdim=True)
    allowed = y * (2.0**-20 * total) + 2.0**-23 * products
    if ctx.case.variant == "eager" and ctx.case.dtype != "float32":
        unit, least = _UNIT[ctx.case.dtype], _LEAST[ctx.case.dtype]
        allowed += unit * (products + y * total) + least * (1 + y * ctx.s.N)
    return allowed


def _moves(read: int, written: int) -> Callable[[Symbols, int], Traffic]:
    """The traffic of so many matrices read and written."""

    def traffic(symbols: Symbols, itemsize: int) -> Traffic:
        matrix = symbols["M"] * symbols["N"] * itemsize
        return Traffic(read * matrix, written * matrix)

    return traffic


def _tuned(symbols: Symbols, itemsize: int) -> Traffic:
    """One read of dy and y where rows are kept on the chip of an H200, whatever the device; else as `two_pass`."""
    kept = has_plan(symbols, itemsize, _KEPT) or in_shared_memory(symbols["N"], itemsize, H200)
    return _moves(2 if kept else 4, 1)(symbols, itemsize)


def in_shared_memory(columns: int, itemsize: int, chip: Chip) -> tuple[int, int] | None:
    """(packs a thread, threads of a block) of a cluster with a row of dy in shared memory; None where none has room.

    columns: of a row, of `itemsize` bytes each.
    """
    packs, rest = divmod(columns * itemsize, PACK_BYTES)
    kept = blocks(packs, MOST_BLOCKS * _MOST_THREADS)
    if rest or not chip.clusters or not 0 < kept <= _MOST_PACKS:
        return None
    threads = WARP * blocks(packs, MOST_BLOCKS * kept * WARP)
    return None if kept * threads * PACK_BYTES + _SUMS > chip.shared else (kept, threads)


OP = Op(
    "softmax_grad",
    "dx = y * (dy - sum(dy * y)) for each row, where y is a softmax",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("dy", ("M", "N")), Tensor("y", ("M", "N"))),
    outputs=(Tensor("dx", ("M", "N")),),
    reference=reference,
    make=make,
    check=check,
    extremes=Extremes(
        exempt={"y": "it is what a softmax leaves"},
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**120),
        why="a row of y may add up to more than 1 by its roundings, and so its sum of products in float32",
    ),
    items="M",
    item="rows",
)


def _backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The op that autograd runs for torch.softmax."""
    import torch

    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


@OP.variant(
    "eager",
    "what autograd calls: dy * y, then the rest",
    role="baseline",
    devices=ANY,
    traffic=_moves(4, 2),
    returns=True,
)
def eager(_: Context) -> Launch:
    """Two kernels on a GPU, with a matrix of products between them; the second kernel reads a long row of it twice."""
    return lambda t: (_backward(t.dy, t.y),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes no matrix of products. It reads dy and y once or twice, which depends on the row's length."""
    function = compiled(_backward)
    return lambda t: (function(t.dy, t.y),)


@OP.variant(
    "two_pass",
    "one block a row: the sum, then dy and y are read again",
    role="published",
    rows=("O8",),
    traffic=_moves(4, 1),
)
def two_pass(ctx: Context) -> Launch:
    """Takes rows of any length, at any address."""
    kernel = ctx.kernel("softmax_grad.cu", "softmax_grad_two_pass", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.N)
    grid = min(ctx.s.M, _GRID)
    return lambda t: kernel(grid, BLOCK, t.dy, t.y, t.dx, *sizes)


def _not_in_registers(case: Case) -> str | None:
    longest = BLOCK * _ELEMENTS[-1]
    if case.symbols["N"] > longest:
        return f"rows of up to {longest} elements only: two of them must fit into the registers of {BLOCK} threads"
    return f"up to {_GRID} rows only, one block each" if case.symbols["M"] > _GRID else None


@OP.variant(
    "registers",
    "one block a row: both rows are kept in register arrays of compile-time size",
    role="published",
    rows=("O8",),
    unsupported=_not_in_registers,
)
def registers(ctx: Context) -> Launch:
    """Takes the smallest arrays that hold the row, out of three sizes."""
    elements = next(count for count in _ELEMENTS if count * BLOCK >= ctx.s.N)
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "ELEMENTS": elements}
    kernel = ctx.kernel("softmax_grad.cu", "softmax_grad_registers", macros)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    return lambda t: kernel(ctx.s.M, BLOCK, t.dy, t.y, t.dx, *sizes)


@OP.variant(
    "tuned",
    "both rows on the chip: in registers of a warp, a block or a cluster; of longer rows one in shared memory",
    rows=("O8",),
    traffic=_tuned,
    tuning=RowParameters(matrices=_KEPT).tuning,
)
def tuned(ctx: Context) -> Launch:
    """Step 3 of softmax_grad.cu, and softmax_grad_shared.cu for longer rows.

    `two_pass` runs where rows are too long for both, or packs aren't aligned.
    """
    if ctx.s.N == 1:
        return _of_one(ctx)
    plan = plan_of(ctx)
    return planned(ctx, plan, two_pass(ctx) if plan else _long(ctx), lambda t: (t.dy, t.y, t.dx), kept=_KEPT)


def _long(ctx: Context) -> Launch:
    """Rows of which registers have no room for both matrices."""
    otherwise: Launch = two_pass(ctx)
    cut = in_shared_memory(ctx.s.N, ITEMSIZE[ctx.case.dtype], Chip.current())
    if cut is None:
        return otherwise
    kept, threads = cut
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "KEPT": kept, "THREADS": threads}
    kernel = ctx.kernel("softmax_grad_shared.cu", "softmax_grad_shared", macros)
    shape = {"shared": kept * threads * PACK_BYTES, "cluster": MOST_BLOCKS}
    grid, sizes = ctx.s.M * MOST_BLOCKS, (ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N))

    def launch(t: Tensors) -> None:
        if aligned(t.dy, t.y, t.dx):
            kernel(grid, threads, t.dy, t.y, t.dx, *sizes, **shape)
        else:
            otherwise(t)

    return launch


def _of_one(ctx: Context) -> Launch:
    """Rows of a single element."""
    kernel = ctx.kernel("softmax_grad.cu", "softmax_grad_of_one", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n = blocks(blocks(ctx.s.M, PACK_BYTES // ITEMSIZE[ctx.case.dtype])), ctypes.c_int64(ctx.s.M)
    return lambda t: kernel(grid, BLOCK, t.dy, t.y, t.dx, n, ctypes.c_int32(aligned(t.dy, t.y, t.dx)))
