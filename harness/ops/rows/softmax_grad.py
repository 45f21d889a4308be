"""The backward of softmax over the rows of a matrix: row O8. Twin of softmax_grad.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.model import Case, Work
from harness.ops import ITEMSIZE, Context, Launch, Op, Symbols, Tensor, Tensors
from harness.ops._baselines import compiled
from harness.ops._elementwise import BLOCK, BOTH, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.ops.rows._rows import has_plan, planned

if TYPE_CHECKING:
    import torch

# Of `two_pass` and `registers`, whose blocks have BLOCK threads, as in softmax_grad.cu:
_ELEMENTS = (4, 16, 64)  # of a row that a thread may keep; twice 64 are half of the registers that it can have
_GRID = 2**31 - 1  # blocks
_KEPT = 2  # matrices of which `tuned` keeps rows

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 0.0, "float16": 2.0**-25, "bfloat16": 0.0}
"""The same of the smallest numbers, absolutely. y of a long row is one of them in float16 alone."""


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers as dy, and the softmax of others as y."""
    import torch

    dy, x = (torch.randn(ctx.s.M, ctx.s.N, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype) for _ in "dx")
    return {"dy": dy, "y": torch.softmax(x, dim=-1)}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """In float64."""
    dy, y = t.dy.double(), t.y.double()
    return {"dx": y * (dy - (dy * y).sum(-1, keepdim=True))}


def check(ctx: Context, t: Tensors) -> str | None:
    """Each dx must be as near to the reference as its sum and its difference allow."""
    want, allowed = reference(ctx, t.before)["dx"], allowance(ctx, t.before)
    allowed += _UNIT[ctx.case.dtype] * want.abs() + _LEAST[ctx.case.dtype]
    wrong = ~((t.dx.double() - want).abs() <= allowed)
    if not bool(wrong.any()):
        return None
    row, column = (int(place) for place in wrong.nonzero()[0])
    values = f"({row}, {column}) is {t.dx[row, column]}, the reference {want[row, column]}"
    return f"dx: {int(wrong.sum())} of {wrong.numel()} elements are wrong; {values} within {allowed[row, column]:.3g}"


def allowance(ctx: Context, t: Tensors) -> torch.Tensor:
    """The error (M, N) that dx may have before it is rounded to its dtype, in float64.

    dx is the difference of y * dy and y * sum, and may be far smaller than they are. Allowed are:
    - 2 float32 units of y * dy;
    - 16 of y * (the sum of |dy * y|) for the sum: chains of k additions err by about 0.2 * sqrt(k) units of it, and k
      is at most a few thousand. One element left out of 2**18 would be missed by 64;
    - for `eager` on halves, where y * dy is rounded to the dtype before it is added, the most that this changes.
    """
    dy, y = t.dy.double(), t.y.double()
    products = (dy * y).abs()
    total = products.sum(-1, keepdim=True)
    allowed = y * (2.0**-20 * total) + 2.0**-23 * products
    if ctx.case.variant == "eager" and ctx.case.dtype != "float32":
        unit, least = _UNIT[ctx.case.dtype], _LEAST[ctx.case.dtype]
        allowed += unit * (products + y * total) + least * (1 + y * ctx.s.N)
    return allowed


def _moves(read: int, written: int) -> Callable[[Symbols, int], Work]:
    """So many whole matrices."""

    def traffic(symbols: Symbols, itemsize: int) -> Work:
        matrix = symbols["M"] * symbols["N"] * itemsize
        flops = 4 * symbols["M"] * symbols["N"]
        return Work(read * matrix, written * matrix, flops=flops, items=symbols["M"], item="rows")

    return traffic


def _tuned(symbols: Symbols, itemsize: int) -> Work:
    return _moves(2 if has_plan(symbols, itemsize, _KEPT) else 4, 1)(symbols, itemsize)


OP = Op(
    "softmax_grad",
    "dx = y * (dy - sum(dy * y)) for each row, where y is a softmax",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("dy", ("M", "N")), Tensor("y", ("M", "N"))),
    outputs=(Tensor("dx", ("M", "N")),),
    reference=reference,
    make=make,
    check=check,
    flops="4 * M * N",
    items="M",
    item="rows",
)


def _backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What autograd runs for torch.softmax."""
    import torch

    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


@OP.variant("eager", "what autograd calls: dy * y, then the rest", devices=BOTH, traffic=_moves(4, 2), returns=True)
def eager(_: Context) -> Launch:
    """Two kernels on a GPU, and a matrix of products between them; the second one reads a long row of it twice."""
    return lambda t: (_backward(t.dy, t.y),)


@OP.variant("compile", "torch.compile of the same", devices=BOTH, returns=True)
def compile_(_: Context) -> Launch:
    """Inductor makes no matrix of products; whether it reads dy and y once or twice depends on the row's length."""
    function = compiled(_backward)
    return lambda t: (function(t.dy, t.y),)


@OP.variant("two_pass", "one block a row: the sum, then dy and y are read again", rows=("O8",), traffic=_moves(4, 1))
def two_pass(ctx: Context) -> Launch:
    """Rows of any length, at any address."""
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
    rows=("O8",),
    unsupported=_not_in_registers,
)
def registers(ctx: Context) -> Launch:
    """The smallest arrays that hold the row, out of a few sizes."""
    elements = next(count for count in _ELEMENTS if count * BLOCK >= ctx.s.N)
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "ELEMENTS": elements}
    kernel = ctx.kernel("softmax_grad.cu", "softmax_grad_registers", macros)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
    return lambda t: kernel(ctx.s.M, BLOCK, t.dy, t.y, t.dx, *sizes)


@OP.variant(
    "tuned",
    "both rows in the registers of a warp, a block or a cluster, as their length asks",
    rows=("O8",),
    traffic=_tuned,
)
def tuned(ctx: Context) -> Launch:
    """See softmax_grad.cu; `two_pass` where rows are too long for that, or packs not aligned."""
    if ctx.s.N == 1:
        return _of_one(ctx)
    return planned(ctx, two_pass(ctx), lambda t: (t.dy, t.y, t.dx), _KEPT)


def _of_one(ctx: Context) -> Launch:
    kernel = ctx.kernel("softmax_grad.cu", "softmax_grad_of_one", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n = blocks(blocks(ctx.s.M, PACK_BYTES // ITEMSIZE[ctx.case.dtype])), ctypes.c_int64(ctx.s.M)
    return lambda t: kernel(grid, BLOCK, t.dy, t.y, t.dx, n, ctypes.c_int32(aligned(t.dy, t.y, t.dx)))
