"""The permutation (0, 2, 1, 3) of the heads of attention, made contiguous: row O13. Twin of permute.cu."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, LIMIT_32, PACK_BYTES, blocks
from harness.collection.ops.layouts import _transpose
from harness.collection.ops.layouts._transpose_plan import WORD, Matrices
from harness.collection.ops.row_parts import MOST_ROWS, SHORTEST, RowParts
from harness.model import Case
from harness.ops import (
    FLOATS,
    ITEMSIZE,
    Built,
    Compile,
    Context,
    Launch,
    Op,
    Plan,
    Tensor,
    Tensors,
    Tuning,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_TEXTS_PACK = 8  # bytes: four halves
_PACK_TYPE = {16: "uint4", 8: "uint2", 4: "unsigned", 2: "unsigned short"}
_SHORTEST_ROW = 32  # bytes: shorter rows are parts of sectors, so neighbours in y read a sector twice
_LONGEST_CELL = 2048  # elements of a row of halves that goes through shared memory
_TILE_SIDE = 32
_UNROLLS = (1, 2, 4, 8)
"""Packs of a thread of permute_packs."""
_FEW_PACKS = 2048  # a multiprocessor, up to which all threads run at once, so that their latency is the kernel's time


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """Nothing is computed, so the case's precision is exact."""
    return {"y": t.x.permute(0, 2, 1, 3)}


OP = Op(
    "permute",
    "y[b, h, s, d] = x[b, s, h, d]",
    symbols={"B": "batch", "S": "sequence", "H": "heads", "D": "elements of a head, which stay together"},
    inputs=(Tensor("x", ("B", "S", "H", "D")),),
    outputs=(Tensor("y", ("B", "H", "S", "D")),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


def _user(x: torch.Tensor) -> torch.Tensor:
    """What a user writes as `x.permute(0, 2, 1, 3).contiguous()`, which makes a new tensor if S and H are above 1."""
    import torch

    return x.permute(0, 2, 1, 3).clone(memory_format=torch.contiguous_format)


@OP.variant("eager", "torch's copy of x.permute(0, 2, 1, 3)", role="baseline", devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (_user(t.x),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape."""
    function = compiled(_user)
    return lambda t: (function(t.x),)


@OP.variant("naive", "one element a thread, three divisions for its coordinates", role="published", rows=("O13",))
def naive(ctx: Context) -> Launch:
    """The text before, in the order of y."""
    return _by_coordinates(ctx, ITEMSIZE[ctx.case.dtype])


def _no_pack(case: Case) -> str | None:
    size = ITEMSIZE[case.dtype]
    return None if _text_pack(case) > size else f"packs of more than {size} bytes don't divide rows of D elements"


@OP.variant("packed", "four halves or two floats as one element", role="published", rows=("O13",), unsupported=_no_pack)
def packed(ctx: Context) -> Launch:
    """The text after: packs of 8 bytes, or 4 where D allows no more, in the same kernel. `naive` at odd addresses."""
    pack = _text_pack(ctx.case)
    wide, single = _by_coordinates(ctx, pack), naive(ctx)
    return lambda t: wide(t) if _transpose.begin_on(pack, t) else single(t)


@OP.variant("tiled", "32 x 32 elements through shared memory", role="published", rows=("O13",))
def tiled(ctx: Context) -> Launch:
    """A tile of rows (b, s) of x. It is there for comparison: a permutation in which D stays needs no tile."""
    b, s, h, d = _sizes(ctx.case)
    macro, word = _transpose.index(b * s * h * d)
    kernel = ctx.kernel("permute.cu", "permute_tiled", _transpose.moved_as(ctx.case) | macro)
    grid, sizes = b * blocks(s, _TILE_SIDE) * blocks(h * d, _TILE_SIDE), (word(s), word(h), word(d))
    return lambda t: kernel(grid, BLOCK, t.x, t.y, *sizes)


def _parameters(_: Case) -> dict[str, tuple[int, ...]]:
    """Packs of a thread of permute_packs, and whether a block has a part of one head instead, in permute_heads."""
    return {"unroll": _UNROLLS, "heads": (0, 1)}


def _rule(case: Case) -> Plan | None:
    """Parts of heads for few packs, else packs a thread.

    None where nothing changes its place, and where shared memory is better than packs.
    """
    shape = _matrices(case)
    pack = _widest_pack(shape)
    if not shape.elements or shape.is_copy or pack is None:
        return None
    count = _count(case, pack)
    heads: Plan = {"unroll": 1, "heads": 1}
    if count <= _FEW_PACKS * cuda.multiprocessors() and not _refuse(case, heads):
        return heads
    return {"unroll": packs_of_thread(count, pack, cuda.multiprocessors()), "heads": 0}


def _refuse(case: Case, plan: Plan) -> str | None:
    if not plan["heads"]:
        return None
    (b, _, h, _), pack = _sizes(case), _widest_pack(_matrices(case))
    assert pack
    if plan["unroll"] != 1:
        return "a thread has one pack where a block has a part of a head"
    if _count(case, pack) >= LIMIT_32:
        return "a head's kernel counts packs in 32 bits"
    if _heads(case, pack).units < SHORTEST:
        return "most threads of a block would have nothing to do"
    return "a grid has no room for so many heads" if max(b, h) > MOST_ROWS else None


def _heads(case: Case, pack: int) -> RowParts:
    """The packs of a head, S * D, as parts for blocks."""
    b, s, h, d = _sizes(case)
    return RowParts.of(b * h, s * d * ITEMSIZE[case.dtype] // pack, BLOCK)


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    pack = _widest_pack(_matrices(case))
    assert pack
    if plan["heads"]:
        parts = _heads(case, pack)
        yield Built("permute.cu", "permute_heads", _head_macros(pack, parts), parts.threads)
    else:
        yield Built("permute.cu", "permute_packs", _pack_macros(case, pack, int(plan["unroll"])), BLOCK)


@OP.variant(
    "tuned",
    "the widest pack that divides rows, or packs or words through shared memory",
    rows=("O13",),
    tuning=Tuning(_parameters, _rule, _refuse, _kernels),
)
def tuned(ctx: Context) -> Launch:
    """Rows of halves that aren't whole words go through shared memory, and so do rows of less than a sector."""
    shape = _matrices(ctx.case)
    if not shape.elements:
        return lambda _: None
    if shape.is_copy:
        return lambda t: cuda.memcpy(t.y, t.x)
    size, pack, plan = shape.itemsize, _widest_pack(shape), ctx.plan()
    if shape.cell * size < _SHORTEST_ROW:
        anywhere = _transpose.word_tiles(ctx, "permute", shape)
        whole_words = shape.cell * size % WORD == 0 and size < WORD
        at_words = _transpose.word_tiles(ctx, "permute", shape.in_words()) if whole_words else anywhere
        return lambda t: at_words(t) if _transpose.begin_on(WORD, t) else anywhere(t)
    through_shared = size < WORD and shape.cell <= _LONGEST_CELL
    anywhere = _transpose.cell_tiles(ctx, "permute", shape) if through_shared else _by_packs(ctx, size)
    if pack is None or plan is None:
        return anywhere
    at_packs = _by_heads(ctx, pack) if plan["heads"] else _by_packs(ctx, pack, int(plan["unroll"]))
    return lambda t: at_packs(t) if _transpose.begin_on(pack, t) else anywhere(t)


def _matrices(case: Case) -> Matrices:
    """A matrix of rows for each sequence: tokens by heads."""
    b, s, h, d = _sizes(case)
    return Matrices(b, s, h, ITEMSIZE[case.dtype], d)


def _widest_pack(shape: Matrices) -> int | None:
    """Bytes of the widest pack that divides rows; None where rows are short, or a pack would be a single element."""
    row = shape.cell * shape.itemsize
    pack = math.gcd(PACK_BYTES, row)
    return pack if row >= _SHORTEST_ROW and pack > shape.itemsize else None


def _sizes(case: Case) -> tuple[int, int, int, int]:
    s = case.symbols
    return s["B"], s["S"], s["H"], s["D"]


def _text_pack(case: Case) -> int:
    """Bytes of the widest pack, up to the text's, that divides rows."""
    return math.gcd(_TEXTS_PACK, case.symbols["D"] * ITEMSIZE[case.dtype])


def _by_coordinates(ctx: Context, pack: int) -> Launch:
    """A launch of the text's kernel, with packs of so many bytes as elements."""
    b, s, h, d = _sizes(ctx.case)
    d = d * ITEMSIZE[ctx.case.dtype] // pack
    n = b * s * h * d
    macro, word = _transpose.index(n)
    kernel = ctx.kernel("permute.cu", "permute_naive", {"ELEMENT": _PACK_TYPE[pack]} | macro)
    grid, sizes = blocks(n), (word(n), word(s), word(h), word(d))
    return lambda t: kernel(grid, BLOCK, t.x, t.y, *sizes)


def _count(case: Case, pack: int) -> int:
    """Packs of so many bytes."""
    return math.prod(_sizes(case)) * ITEMSIZE[case.dtype] // pack


def _pack_macros(case: Case, pack: int, unroll: int) -> dict[str, str | int]:
    macro, _ = _transpose.index(_count(case, pack))
    return {"ELEMENT": _PACK_TYPE[pack], "UNROLL": unroll, **macro}


def _by_packs(ctx: Context, pack: int, unroll: int | None = None) -> Launch:
    """A launch of permute_packs, with packs of so many bytes. unroll: of a thread, unless the rule says how many."""
    _, s, h, d = _sizes(ctx.case)
    d = d * ITEMSIZE[ctx.case.dtype] // pack
    n = _count(ctx.case, pack)
    each = unroll or packs_of_thread(n, pack, cuda.multiprocessors())
    _, word = _transpose.index(n)
    kernel = ctx.kernel("permute.cu", "permute_packs", _pack_macros(ctx.case, pack, each))
    divisors = [part for size in (s, h, d) for part in (word(size), *cuda.fast_divisor(size, 8 * ctypes.sizeof(word)))]
    grid = blocks(n, BLOCK * each)
    return lambda t: kernel(grid, BLOCK, t.x, t.y, word(n), *divisors)


def _head_macros(pack: int, parts: RowParts) -> dict[str, str | int]:
    return {"ELEMENT": _PACK_TYPE[pack], "ROW_THREADS": parts.threads}


def _by_heads(ctx: Context, pack: int) -> Launch:
    """A launch of permute_heads, with packs of so many bytes."""
    b, _, h, d = _sizes(ctx.case)
    d, parts, word = d * ITEMSIZE[ctx.case.dtype] // pack, _heads(ctx.case, pack), ctypes.c_uint32
    kernel = ctx.kernel("permute.cu", "permute_heads", _head_macros(pack, parts))
    sizes = word(parts.units), word(d), *cuda.fast_divisor(d, 32), word(h)
    return lambda t: kernel((parts.blocks, h, b), parts.threads, t.x, t.y, *sizes)


def packs_of_thread(packs: int, size: int, multiprocessors: int) -> int:
    """Give a thread of permute_packs a pack of 16 bytes, or 8 narrower packs; fewer where multiprocessors would idle.

    size: of a pack. A multiprocessor's 2048 threads with a pack of 16 bytes each keep the memory busy.
    """
    unroll = 1 if size == PACK_BYTES else min(8, 64 // size)
    while unroll > 1 and blocks(packs, BLOCK * unroll) < 2 * multiprocessors:
        unroll //= 2
    return unroll
