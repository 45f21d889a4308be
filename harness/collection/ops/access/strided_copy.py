"""Copy with strides: row O10. Twin of strided_copy.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from harness.collection.ops.elementwise import BLOCK, BOTH, PACK_BYTES, WORD_TYPE, aligned, blocks
from harness.model import Traffic, Work
from harness.ops import ITEMSIZE, Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

SECTOR = 32  # bytes: the least that the memory moves


def work(symbols: Symbols, size: int) -> Work:
    """The elements copied are read and written; what lies between them is neither."""
    moved = symbols["N"] * size
    return Work(read=moved, written=moved)


def sectors(symbols: Symbols, size: int) -> Traffic:
    """The memory moves whole sectors: each sector that an element lies in."""
    return Traffic(
        read=symbols["N"] * min(symbols["R"] * size, SECTOR),
        written=symbols["N"] * min(symbols["W"] * size, SECTOR),
    )


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """The elements copied must equal x's; what lies between them in y has no value to compare."""
    yield Expected("y", t.y[:: ctx.s.W], t.before.x[:: ctx.s.R])


OP = Op(
    "strided_copy",
    "y[i * W] = x[i * R], N elements; the rest of y stays",
    symbols={"N": "elements copied", "R": "stride of the reads in elements", "W": "stride of the writes in elements"},
    defaults={"R": "1", "W": "1"},
    inputs=(Tensor("x", ("N * R",)),),
    outputs=(Tensor("y", ("N * W",)),),
    check=check,
    work=work,
)


@OP.variant("eager", "copy_ between strided views", role="baseline", rows=("O10",), devices=BOTH, traffic=sectors)
def eager(ctx: Context) -> Launch:
    """The code that users write today."""
    read, write = ctx.s.R, ctx.s.W

    def launch(t: Tensors) -> None:
        t.y[::write].copy_(t.x[::read])

    return launch


@compiled_variants(OP, "torch.compile of the same", traffic=sectors, returns=False)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor writes into y in place, and only the elements that change."""
    read, write = ctx.s.R, ctx.s.W
    function = compiled(lambda x, y: y[::write].copy_(x[::read]))
    return lambda t: function(t.x, t.y)


@OP.variant("scalar", "one element a thread", role="published", rows=("O10",), traffic=sectors)
def scalar(ctx: Context) -> Launch:
    """The text's case: only a part of each sector is used."""
    kernel = ctx.kernel("strided_copy.cu", "strided_scalar", {"SCALAR": WORD_TYPE[ITEMSIZE[ctx.case.dtype]]})
    n, strides = ctx.s.N, _strides(ctx)

    def launch(t: Tensors) -> None:
        kernel(blocks(n), BLOCK, t.x, t.y, ctypes.c_int64(n), *strides)

    return launch


@OP.variant(
    "tuned", "a sector's worth of elements a thread; packs where both strides are 1", rows=("O10",), traffic=sectors
)
def tuned(ctx: Context) -> Launch:
    """It has as many bytes in flight as a plain copy, whatever the strides."""
    n, size, strides = ctx.s.N, ITEMSIZE[ctx.case.dtype], _strides(ctx)
    each, pack = per_thread(size, ctx.s.R, ctx.s.W), PACK_BYTES // size
    elements = ctx.kernel("strided_copy.cu", "strided_tuned", _macros(WORD_TYPE[size], each))
    packs = ctx.kernel("strided_copy.cu", "strided_tuned", _macros("uint4", 1)) if ctx.s.R == ctx.s.W == 1 else None

    def launch(t: Tensors) -> None:
        whole = 0
        if packs is not None and aligned(t.x, t.y):
            whole = n // pack
            packs(blocks(whole), BLOCK, t.x, t.y, ctypes.c_int64(0), ctypes.c_int64(whole), *strides)
        done = whole * pack
        grid = blocks(n - done, BLOCK * each)
        elements(grid, BLOCK, t.x, t.y, ctypes.c_int64(done), ctypes.c_int64(n), *strides)

    return launch


def per_thread(size: int, read: int, write: int) -> int:
    """The elements a thread takes, a power of two up to 8: the number that the longer stride lays into one sector.

    size: bytes of an element.
    """
    in_sector = SECTOR // (max(read, write) * size)
    return min(8, 1 << max(0, in_sector.bit_length() - 1))


def _macros(scalar: str, each: int) -> dict[str, str | int]:
    return {"SCALAR": scalar, "PER_THREAD": each, "BLOCK": BLOCK}


def _strides(ctx: Context) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return ctypes.c_int64(ctx.s.R), ctypes.c_int64(ctx.s.W)
