"""What ops that transpose a batch of matrices share: launches of transposes.cuh and of the textbook's tiles."""

from __future__ import annotations

import ctypes
from typing import Any

from harness import cuda
from harness.collection.ops.elementwise import INDEX_TYPE, LIMIT_32, PACK_BYTES, WORD_TYPE, blocks
from harness.collection.ops.layouts._pack_plan import CellTiles, Narrow, PackTiles
from harness.collection.ops.layouts._transpose_plan import SECTOR, THREADS, WORD, Matrices, RegisterBlocks, WordTiles
from harness.model import Case
from harness.ops import ITEMSIZE, Context, Launch, Tensors

_TILE_THREADS = 256  # TILE_LANES * TILE_LINES of tile.cuh
_TILE_SIDE = 32  # elements, or pairs of halves
# When tiles of packs are better than tiles of words. Where rows are whole sectors, by bytes of an element: there must
# be so many waves of tiles, and elements must fill such a share of their room. Where rows aren't whole sectors: tiles
# of packs may cost at most such a share of what tiles of words cost.
_MANY = {2: (8, 0.97), 4: (2.5, 0.9)}
_FEW_WAVES = 1.2  # up to so many waves, small tiles of halves are better, too, if each multiprocessor has one
_GAIN, _FLAT_GAIN, _SHIFTED = 0.87, 0.5, 1.15
_LONGEST = 2**32 - 2**16  # rows or columns: the last tile ends beyond them, below 2^32


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
    """A launch of the fastest kernel of <op>.cu for these matrices, at any addresses."""
    if not shape.elements:
        return lambda _: None
    if shape.is_copy:
        return lambda t: cuda.memcpy(t.y, t.x)
    packs = _best_pack_tiles(shape)
    anywhere = _pack_tiles(ctx, op, shape) if packs else word_tiles(ctx, op, shape)
    at_packs = _in_registers(ctx, op, shape, packs)
    if at_packs is None:
        return anywhere
    return lambda t: at_packs(t) if begin_on(PACK_BYTES, t) else anywhere(t)


def _in_registers(ctx: Context, op: str, shape: Matrices, packs: PackTiles | None) -> Launch | None:
    """A launch of the kernel for whole packs; None where rows have parts of packs, or another kernel is better."""
    narrow = Narrow.of(shape)
    if narrow:
        of_shape: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **narrow.macros}
        kernel = ctx.kernel(f"{op}.cu", f"{op}_narrow", of_shape)
        row = ctypes.c_uint32(narrow.threads), ctypes.c_uint32(narrow.packs), *cuda.fast_divisor(narrow.packs, 32)
        grid = blocks(narrow.threads, THREADS)
        return lambda t: kernel(grid, THREADS, t.x, t.y, *row)
    plan = RegisterBlocks.of(shape)
    # Tiles of packs are faster for the largest of these matrices, if their elements are floats.
    if plan is None or (packs and shape.itemsize == WORD):
        return None
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_register_blocks", macros)
    sizes = ctypes.c_uint32(shape.rows), ctypes.c_uint32(shape.cols)
    tiles, threads = plan.grid, plan.threads
    return lambda t: kernel(tiles, threads, t.x, t.y, *sizes)


def _best_pack_tiles(shape: Matrices) -> PackTiles | None:
    """The tiles of pack_tile.cuh, if they are faster than the other tiles, as measured on an H200."""
    multiprocessors = cuda.multiprocessors()
    plan = PackTiles.of(shape, multiprocessors, aligned=True)
    words = WordTiles.of(shape, multiprocessors, aligned=True) or WordTiles.of(shape, multiprocessors, aligned=False)
    if plan is None or words is None:
        return None
    if shape.whole_sectors:
        # All kernels are good at these. Packs gain where there are many tiles, and halves where there are few.
        (many, full), waves = _MANY[shape.itemsize], plan.waves(multiprocessors)
        few = shape.itemsize < WORD and waves <= _FEW_WAVES and plan.grid >= multiprocessors
        return plan if (few or waves >= many) and plan.full >= full else None
    # Costs are rough. Words of flat runs that are shifted are slower than they seem. Few tiles leave the device idle.
    slow = _SHIFTED if words.shifted and words.flat_x else 1
    idle = min(multiprocessors, words.grid) / min(multiprocessors, plan.grid)
    return plan if idle * plan.cost() < (_FLAT_GAIN if plan.flat else _GAIN) * slow * words.cost() else None


def _pack_tiles(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of <op>_pack_tiles for these matrices, at any addresses."""
    at_sectors, anywhere = (_pack_tiles_at(ctx, op, shape, aligned=aligned) for aligned in (True, False))
    return lambda t: at_sectors(t) if begin_on(SECTOR, t) else anywhere(t)


def _pack_tiles_at(ctx: Context, op: str, shape: Matrices, *, aligned: bool) -> Launch:
    plan = PackTiles.of(shape, cuda.multiprocessors(), aligned=aligned)
    assert plan
    macros: dict[str, str | int] = {"ELEMENT": WORD_TYPE[shape.itemsize], **plan.macros}
    kernel = ctx.kernel(f"{op}.cu", f"{op}_pack_tiles", macros)
    return _by_tiles(kernel, plan, plan.threads, plan.shared)


def word_tiles(ctx: Context, op: str, shape: Matrices) -> Launch:
    """A launch of <op>_word_tiles for these matrices, which have elements, and at least two rows and columns."""
    even = _word_tiles(ctx, op, shape, aligned=True)
    # Floats begin with whole words wherever they begin.
    anywhere = even if shape.itemsize == WORD else _word_tiles(ctx, op, shape, aligned=False)
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


def _word_tiles(ctx: Context, op: str, shape: Matrices, *, aligned: bool) -> Launch | None:
    plan = WordTiles.of(shape, cuda.multiprocessors(), aligned=aligned)
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


def too_long(shape: Matrices) -> str | None:
    """Why kernels with tiles can't transpose these matrices; None if they can."""
    long = max(shape.rows, shape.cols) > _LONGEST
    return "counts rows and columns in 32 bits: for fewer than 2^32 of them" if long else None


def no_pairs(shape: Matrices) -> str | None:
    """Why `packed` can't transpose these matrices; None if it can."""
    if shape.itemsize == WORD:
        return "a float fills a word; only halves can be packed where no dimension stays"
    return "pairs of halves need even sizes" if shape.rows % 2 or shape.cols % 2 else too_long(shape)


def _tiles(kernel: cuda.Kernel, shape: Matrices, side: int) -> Launch:
    grid = shape.batch * blocks(shape.rows, side) * blocks(shape.cols, side)
    sizes = ctypes.c_uint32(shape.rows), ctypes.c_uint32(shape.cols)
    return lambda t: kernel(grid, _TILE_THREADS, t.x, t.y, *sizes)


def _order(plan: WordTiles | PackTiles) -> tuple[Any, ...]:
    """Arguments that say which tile a block takes."""
    by_matrix, by_band = (cuda.fast_divisor(size, 32) for size in (plan.down * plan.across, plan.band * plan.down))
    return ctypes.c_uint32(plan.down), ctypes.c_uint32(plan.across), *by_matrix, *by_band
