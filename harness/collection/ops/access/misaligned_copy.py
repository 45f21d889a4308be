"""Copy between addresses that aren't aligned: row O10. Twin of misaligned_copy.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.collection.ops.elementwise import BLOCK, BOTH, PACK_BYTES, WORD_TYPE, blocks, split
from harness.model import Work
from harness.ops import ITEMSIZE, Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    from harness.cuda import Kernel

_SECTOR_BYTES = 32
_WORD_BYTES = 4
_WORDS_A_BLOCK = 4 * BLOCK  # of misaligned_words


def work(symbols: Symbols, size: int) -> Work:
    """The elements copied are read and written; the elements before them are neither read nor written."""
    moved = symbols["N"] * size
    return Work(read=moved, written=moved)


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """The elements copied must equal x's; what lies before them in y has no value to compare."""
    yield Expected("y", t.y[ctx.s.G :], t.before.x[ctx.s.F :], start=ctx.s.G)


OP = Op(
    "misaligned_copy",
    "y[G + i] = x[F + i], N elements; what lies before them in y stays",
    symbols={"N": "elements copied", "F": "first element read", "G": "first element written"},
    defaults={"F": "0", "G": "0"},
    inputs=(Tensor("x", ("N + F",)),),
    outputs=(Tensor("y", ("N + G",)),),
    check=check,
    work=work,
)


@OP.variant(
    "eager",
    "torch's copy_, which is a cudaMemcpyAsync",
    role="baseline",
    rows=("O10",),
    devices=BOTH,
    timer="launch",  # as users call it, like copy's: inside a CUDA graph it would be slower
)
def eager(ctx: Context) -> Launch:
    """The code that users write today."""
    first_read, first_written = ctx.s.F, ctx.s.G

    def launch(t: Tensors) -> None:
        t.y[first_written:].copy_(t.x[first_read:])

    return launch


@compiled_variants(OP, "torch.compile of the same", returns=False)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly these offsets, which writes into y in place."""
    first_read, first_written = ctx.s.F, ctx.s.G
    function = compiled(lambda x, y: y[first_written:].copy_(x[first_read:]))
    return lambda t: function(t.x, t.y)


@OP.variant("scalar", "one element a thread", role="published", rows=("O10",))
def scalar(ctx: Context) -> Launch:
    """The text's case: a warp's 128 bytes lie in five sectors where they don't begin on a boundary."""
    kernel = _kernel(ctx, "misaligned_scalar")
    n, places = ctx.s.N, _places(ctx)

    def launch(t: Tensors) -> None:
        kernel(blocks(n), BLOCK, t.x, t.y, ctypes.c_int64(n), *places)

    return launch


@OP.variant(
    "packed", "16-byte packs where both sides are aligned to them, else scalar", role="published", rows=("O10",)
)
def packed(ctx: Context) -> Launch:
    """Most vectorized kernels do this: they check the addresses, and fall back."""
    kernel, fallback = _kernel(ctx, "misaligned_packed"), scalar(ctx)
    n, places = ctx.s.N, _places(ctx)
    pack = PACK_BYTES // ITEMSIZE[ctx.case.dtype]

    def launch(t: Tensors) -> None:
        if any(_offsets(ctx, t)):
            fallback(t)
            return
        packs = n // pack
        grid = blocks(packs + n % pack)
        kernel(grid, BLOCK, t.x, t.y, ctypes.c_int64(n), *places, ctypes.c_int64(packs))

    return launch


@OP.variant("tuned", "whole stores at any offset: packs, shifted where need be, or single words", rows=("O10",))
def tuned(ctx: Context) -> Launch:
    """Packs begin on 16 bytes of y, words on a sector of it; see misaligned_copy.cu."""
    kernel, words = _kernel(ctx, "misaligned_tuned"), _kernel(ctx, "misaligned_words")
    n, size, places = ctx.s.N, ITEMSIZE[ctx.case.dtype], _places(ctx)

    def launch(t: Tensors) -> None:
        head, packs, misaligned = split(n, size, *_offsets(ctx, t))
        if misaligned and size == _WORD_BYTES:
            before = -(t.y.data_ptr() + ctx.s.G * size) % _SECTOR_BYTES // size
            words(blocks(n, _WORDS_A_BLOCK), BLOCK, t.x, t.y, ctypes.c_int64(n), *places, ctypes.c_uint32(before))
            return
        grid = blocks(packs + n - packs * (PACK_BYTES // size))
        scalars = (ctypes.c_int64(head), ctypes.c_int64(packs), ctypes.c_uint32(misaligned))
        kernel(grid, BLOCK, t.x, t.y, ctypes.c_int64(n), *places, *scalars)

    return launch


def _kernel(ctx: Context, entry: str) -> Kernel:
    macros: dict[str, str | int] = {"SCALAR": WORD_TYPE[ITEMSIZE[ctx.case.dtype]], "BLOCK": BLOCK}
    return ctx.kernel("misaligned_copy.cu", entry, macros)


def _places(ctx: Context) -> tuple[ctypes.c_int64, ctypes.c_int64]:
    return ctypes.c_int64(ctx.s.F), ctypes.c_int64(ctx.s.G)


def _offsets(ctx: Context, t: Tensors) -> tuple[int, int]:
    """The addresses modulo 16 of the first element read and of the first one written."""
    size = ITEMSIZE[ctx.case.dtype]
    first_read, first_written = t.x.data_ptr() + ctx.s.F * size, t.y.data_ptr() + ctx.s.G * size
    return first_read % PACK_BYTES, first_written % PACK_BYTES
