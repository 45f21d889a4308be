"""Kernels as Triton's tutorials teach them, written by ourselves: softmax and LayerNorm, a program a row.

What somebody has after an afternoon with Triton, which comes with torch on Linux with a GPU.
"""

from __future__ import annotations

from typing import Any

from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import layer_norm, softmax
from harness.collection.peers._library import PeerLibrary
from harness.ops import Context, Launch

LIBRARY = PeerLibrary("Triton", "triton", "triton>=3")
_LONGEST = 65_536  # elements of a row that a program keeps; of this length a part spills
_BLOCK = 4096  # elements that a program of LayerNorm reads at a time, at most
_ROW = LIBRARY.obstacle(longest=_LONGEST)


def _softmax() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def rows(x, y, columns, block: tl.constexpr):  # type: ignore[no-untyped-def]
        start = tl.program_id(0).to(tl.int64) * columns
        column = tl.arange(0, block)
        inside = column < columns
        row = tl.load(x + start + column, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp(row - tl.max(row, axis=0))
        tl.store(y + start + column, (powers / tl.sum(powers, axis=0)).to(y.dtype.element_ty), mask=inside)

    return rows


def _layer_norm() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def rows(  # type: ignore[no-untyped-def] # noqa: PLR0913, PLR0917 - tensors, sizes and constants
        x, gamma, beta, y, means, rstds, columns, eps, block: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        x += row * columns
        y += row * columns
        total = tl.zeros([block], dtype=tl.float32)
        for first in range(0, columns, block):
            column = first + tl.arange(0, block)
            total += tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
        mean = tl.sum(total, axis=0) / columns
        squares = tl.zeros([block], dtype=tl.float32)
        for first in range(0, columns, block):
            column = first + tl.arange(0, block)
            value = tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
            centred = tl.where(column < columns, value - mean, 0.0)
            squares += centred * centred
        rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
        tl.store(means + row, mean)
        tl.store(rstds + row, rstd)
        for first in range(0, columns, block):
            column = first + tl.arange(0, block)
            inside = column < columns
            value = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
            scale = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32)
            shift = tl.load(beta + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(y + column, ((value - mean) * rstd * scale + shift).to(y.dtype.element_ty), mask=inside)

    return rows


def warps(block: int) -> int:
    """Warps of a program that works on so many elements at a time: 8 elements a thread, 16 warps at most."""
    return min(16, max(1, block // 256))


@softmax.OP.variant(
    "triton_tutorial", "a program a row, as Triton's tutorial teaches it", role="peer", unsupported=_ROW
)
def softmax_triton(ctx: Context) -> Launch:
    """A row is read once, and stays in registers."""
    import triton

    rows, columns = _softmax(), ctx.s.N
    block = triton.next_power_of_2(columns)
    return lambda t: rows[(ctx.s.M,)](t.x, t.y, columns, block=block, num_warps=warps(block))


@layer_norm.OP.variant(
    "triton_tutorial",
    "a program a row, read three times, as Triton's tutorial teaches it",
    role="peer",
    unsupported=LIBRARY.obstacle(),
)
def layer_norm_triton(ctx: Context) -> Launch:
    """The second and the third read of a short row come from a cache."""
    import triton

    rows, columns = _layer_norm(), ctx.s.N
    block = min(_BLOCK, triton.next_power_of_2(columns))
    grid = (ctx.s.M,)
    return lambda t: rows[grid](
        t.x, t.gamma, t.beta, t.y, t.mean, t.rstd, columns, norm.EPS, block=block, num_warps=warps(block)
    )
