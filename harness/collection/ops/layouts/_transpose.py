"""What ops that transpose a batch of matrices share: launches of transposes.cuh and of the textbook's tiles."""

from __future__ import annotations

import ctypes
from typing import Any

from harness import cuda
from harness.collection.ops.elementwise import INDEX_TYPE, LIMIT_32, PACK_BYTES, WORD_TYPE, blocks
from harness.collection.ops.layouts import _transpose_tuning as tuning
from harness.collection.ops.layouts._pack_plan import CellTiles, Narrow, PackTiles
from harness.collection.ops.layouts._transpose_plan import SECTOR, THREADS, WORD, Matrices, RegisterBlocks, WordTiles
from harness.model import Case
from harness.ops import ITEMSIZE, Context, Launch, Tensors

_TILE_THREADS = 256  # TILE_LANES * TILE_LINES of tile.cuh
_TILE_SIDE = 32  # elements, or pairs of halves


def begin_on(size: int, t: Tensors) -> bool:
    """Whether x and y begin at multiples of `size` bytes."""
    return not (t.x.data_ptr() | t.y.data_ptr()) % size


def moved_as(case: Case) -> dict[str, str]:
    """The macro that names the type of an element, whose value no kernel looks at."""
    return {"ELEMENT": WORD_TYPE[ITEMSIZE[case.dtype]]}


def index(elements: int) -> tuple[dict[str, str], Any]:
    """The macro that names the type of an index of so many elements, and the type for arguments."""
    bits = 32 if elements < LIMIT_32 else 64
    return {"INDEX": INDEX_TYPE[bits]}, ctypes.c_uint32 if bits == 32 else ctypes.c_uint64


def tuned(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of the kernel of <op>.cu that a table or the rule names for these matrices, at any addresses."""
    if not shape.elements:
        return lambda _: None
    if shape.is_copy:
        return lambda t: cuda.memcpy(t.y, t.x)
    plan = ctx.plan()
    assert plan
    return tiles_of(ctx, op, shape, str(plan["tiles"]))


def tiles_of(ctx: Context, op: str, shape: Matrices, name: str) -> Launch:
    """A launch of the kernel of <op>.cu with these tiles: see _transpose_tuning.py."""
    kind, size = tuning.kind_and_size(name)
    if kind == "packs":
        return _pack_tiles(ctx, op, shape, size)
    if kind == "words":
        return word_tiles(ctx, op, shape, int(size) if size else None)
    by_words = not tuning.packs_are_best(shape, cuda.multiprocessors())
    anywhere = word_tiles(ctx, op, shape) if by_words else _pack_tiles(ctx, op, shape)
    cut = _narrow if kind == "narrow" else _registers
    at_packs = cut(ctx, op, shape, int(size))
    return lambda t: at_packs(t) if begin_on(PACK_BYTES, t) else anywhere(t)


def _narrow(ctx: Context, op: str, shape: Matrices, block: int) -> Launch:
    narrow = Narrow.of(shape, block)
    assert narrow
    kernel = ctx.kernel(f"{op}.cu", f"{op}_narrow", {"ELEMENT": WORD_TYPE[shape.itemsize], **narrow.macros})
    row = ctypes.c_uint32(narrow.threads), ctypes.c_uint32(narrow.packs), *cuda.fast_divisor(narrow.packs, 32)
    grid = blocks(narrow.threads, block)
    return lambda t: kernel(grid, block, t.x, t.y, *row)


def _registers(ctx: Context, op: str, shape: Matrices, warps_across: int) -> Launch:
    plan = RegisterBlocks(shape, warps_across)
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[plan.shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_register_blocks", macros)
    sizes = ctypes.c_uint32(plan.shape.rows), ctypes.c_uint32(plan.shape.cols)
    tiles, threads = plan.grid, plan.threads
    return lambda t: kernel(tiles, threads, t.x, t.y, *sizes)


def _pack_tiles(ctx: Context, op: str, shape: Matrices, size: str = "") -> Launch:
    """A launch of <op>_pack_tiles for these matrices, at any addresses. size: of tiles, unless the rule says it."""
    at_sectors, anywhere = (_pack_tiles_at(ctx, op, shape, size, aligned=aligned) for aligned in (True, False))
    return lambda t: at_sectors(t) if begin_on(SECTOR, t) else anywhere(t)


def _pack_tiles_at(ctx: Context, op: str, shape: Matrices, size: str, *, aligned: bool) -> Launch:
    plan = tuning.pack_tiles(shape, size, aligned=aligned)
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_pack_tiles", macros)
    return _by_tiles(kernel, plan, plan.threads, plan.shared)


def word_tiles(ctx: Context, op: str, shape: Matrices, items: int | None = None) -> Launch:
    """A launch of <op>_word_tiles for these matrices, which have elements, and at least two rows and columns.

    items: words of a thread at most, unless the rule says how many.
    """
    even = _word_tiles(ctx, op, shape, items, aligned=True)
    # Floats begin with whole words wherever they begin.
    anywhere = even if shape.itemsize == WORD else _word_tiles(ctx, op, shape, items, aligned=False)
    assert anywhere
    if even is None or even is anywhere:
        return anywhere
    return lambda t: even(t) if begin_on(WORD, t) else anywhere(t)


def cell_tiles(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of <op>_cell_tiles for these matrices; of word_tiles where shared memory has no room for them."""
    plan, elsewhere = (CellTiles.of(shape, aligned=aligned) for aligned in (True, False))
    if plan is None or elsewhere is None:
        return word_tiles(ctx, op, shape)
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_cell_tiles", macros)
    sizes = ctypes.c_uint32(shape.batch), ctypes.c_uint32(shape.rows)
    of = {True: (plan.grid, ctypes.c_uint32(plan.down)), False: (elsewhere.grid, ctypes.c_uint32(elsewhere.down))}

    def launch(t: Tensors) -> None:
        grid, down = of[begin_on(SECTOR, t)]
        kernel(grid, THREADS, t.x, t.y, *sizes, down)

    return launch


def _word_tiles(ctx: Context, op: str, shape: Matrices, items: int | None, *, aligned: bool) -> Launch | None:
    plan = WordTiles.of(shape, cuda.multiprocessors(), aligned=aligned, items=items)
    if plan is None:
        return None
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_word_tiles", macros)
    return _by_tiles(kernel, plan)


def _by_tiles(kernel: cuda.Kernel, plan: WordTiles | PackTiles, threads: int = THREADS, shared: int = 0) -> Launch:
    shape, order, grid = plan.shape, _order(plan), plan.grid
    sizes = tuple(ctypes.c_uint32(size) for size in (shape.batch, shape.rows, shape.cols))
    return lambda t: kernel(grid, threads, t.x, t.y, *sizes, *order, shared=shared)


def tiled(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of <op>_tiled, the textbook's tile of 32 x 32 elements."""
    kernel = ctx.kernel(f"{op}.cu", f"{op}_tiled", moved_as(ctx.case))
    return _tiles(kernel, shape, _TILE_SIDE)


def packed(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of <op>_packed, a tile of 64 x 64 halves; of <op>_tiled where pairs aren't words."""
    kernel = ctx.kernel(f"{op}.cu", f"{op}_packed", moved_as(ctx.case))
    pairs, singles = _tiles(kernel, shape, 2 * _TILE_SIDE), tiled(ctx, op, shape)
    return lambda t: pairs(t) if begin_on(WORD, t) else singles(t)


def no_pairs(shape: Matrices) -> str | None:
    """Why `packed` can't transpose these matrices; None if it can."""
    if shape.itemsize == WORD:
        return "a float fills a word; only halves can be packed where no dimension stays"
    return "pairs of halves need even sizes" if shape.rows % 2 or shape.cols % 2 else tuning.too_long(shape)


def _tiles(kernel: cuda.Kernel, shape: Matrices, side: int) -> Launch:
    grid = shape.batch * blocks(shape.rows, side) * blocks(shape.cols, side)
    sizes = ctypes.c_uint32(shape.rows), ctypes.c_uint32(shape.cols)
    return lambda t: kernel(grid, _TILE_THREADS, t.x, t.y, *sizes)


def _order(plan: WordTiles | PackTiles) -> tuple[Any, ...]:
    """Arguments that say which tile a block takes."""
    by_matrix, by_band = (cuda.fast_divisor(size, 32) for size in (plan.down * plan.across, plan.band * plan.down))
    return ctypes.c_uint32(plan.down), ctypes.c_uint32(plan.across), *by_matrix, *by_band
