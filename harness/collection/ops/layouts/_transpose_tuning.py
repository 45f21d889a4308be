"""The kernels of a transpose and their tiles, as one parameter that a search may vary.

tiles: 'words' and 'packs' are tiles of words and of packs as the rule cuts them. 'words8' are tiles of words with at
most 8 words of a thread, 'packs16x8' tiles of packs with 16 packs of a row of x and 8 of a row of y. 'registers2' are
blocks in registers with two warps side by side. 'narrow64' is the kernel for few rows or few columns, with 64 threads a
block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from harness import cuda
from harness.collection.ops.elementwise import WORD_TYPE
from harness.collection.ops.layouts._pack_plan import Narrow, PackTiles
from harness.collection.ops.layouts._transpose_plan import (
    MOST_ITEMS,
    THREADS,
    WORD,
    Matrices,
    RegisterBlocks,
    WordTiles,
)
from harness.model import Case
from harness.ops import Built, Plan, Tuning

# When tiles of packs are better than tiles of words. Where rows are whole sectors, by bytes of an element: there must
# be so many waves of tiles, and elements must fill such a share of their room. Where rows aren't whole sectors: tiles
# of packs may cost at most such a share of what tiles of words cost.
_MANY = {2: (8, 0.97), 4: (2.5, 0.9)}
_FEW_WAVES = 1.2  # up to so many waves, small tiles of halves are better, too, if each multiprocessor has one
_GAIN, _FLAT_GAIN, _SHIFTED = 0.87, 0.5, 1.15
NARROW_BLOCKS = THREADS, 128, 64, 32
"""Threads that a block of the kernel for few rows or columns may have."""
_LONGEST = 2**32 - 2**16  # rows or columns: the last tile ends beyond them, below 2^32


def tuning(op: str, matrices: Callable[[Case], Matrices]) -> Tuning:
    """What the variant `tuned` of an op declares, which transposes these matrices of a case."""

    def rule(case: Case) -> Plan | None:
        shape = matrices(case)
        # Elements whose order stays are copied.
        return {"tiles": ruled(shape, cuda.multiprocessors())} if shape.elements and not shape.is_copy else None

    def parameters(case: Case) -> dict[str, Sequence[str]]:
        return {"tiles": tuple(tiles(matrices(case)))}

    def kernels(case: Case, plan: Plan) -> Iterator[Built]:
        return built(op, matrices(case), str(plan["tiles"]))

    return Tuning(parameters, rule, kernels=kernels)


def tiles(shape: Matrices) -> Iterator[str]:
    """All tiles that these matrices may have at aligned addresses."""
    if Narrow.of(shape):
        yield from (f"narrow{block}" for block in NARROW_BLOCKS)
    if RegisterBlocks.fits(shape):
        yield from (f"registers{warps}" for warps in RegisterBlocks.across)
    if PackTiles.of(shape, cuda.multiprocessors(), aligned=True):
        yield "packs"
        yield from (f"packs{across}x{down}" for across, down in PackTiles.sizes(shape))
    yield "words"
    yield from (f"words{items}" for items in MOST_ITEMS if word_tiles(shape, items))


@lru_cache(maxsize=256)
def ruled(shape: Matrices, multiprocessors: int) -> str:
    """The tiles of matrices where no table says which, as measured on an H200."""
    if narrow := Narrow.of(shape):
        return _ruled_narrow(narrow, multiprocessors)
    packs, registers = packs_are_best(shape, multiprocessors), RegisterBlocks.of(shape)
    # Tiles of packs are faster for the largest of the matrices in registers, if their elements are floats.
    if registers and not (packs and shape.itemsize == WORD):
        return f"registers{registers.warps_across}"
    return "packs" if packs else "words"


def _ruled_narrow(narrow: Narrow, multiprocessors: int) -> str:
    """The largest blocks of which each multiprocessor has one. Where there are too few, words are faster for halves."""
    block = next((block for block in NARROW_BLOCKS if narrow.threads >= block * multiprocessors), None)
    if block:
        return f"narrow{block}"
    return "words" if narrow.shape.itemsize < WORD else f"narrow{NARROW_BLOCKS[-1]}"


def word_tiles(shape: Matrices, items: int | None = None) -> WordTiles | None:
    """Tiles of words at aligned addresses. items: words of a thread at most, unless the rule says how many."""
    multiprocessors = cuda.multiprocessors()
    even = WordTiles.of(shape, multiprocessors, aligned=True, items=items)
    return even or WordTiles.of(shape, multiprocessors, aligned=False, items=items)


def pack_tiles(shape: Matrices, size: str, *, aligned: bool) -> PackTiles:
    """Tiles of packs. size: '16x8'; '' where the rule says which."""
    if size:
        across, down = map(int, size.split("x"))
        return PackTiles(shape, across, down, aligned)
    plan = PackTiles.of(shape, cuda.multiprocessors(), aligned=aligned)
    assert plan
    return plan


def built(op: str, shape: Matrices, name: str) -> Iterator[Built]:
    """The kernel of these tiles at aligned addresses."""
    file, element = f"{op}.cu", {"ELEMENT": WORD_TYPE[shape.itemsize]}
    kind, size = kind_and_size(name)
    if kind == "packs":
        packs = pack_tiles(shape, size, aligned=True)
        yield Built(file, f"{op}_pack_tiles", {**element, **packs.macros}, packs.threads, packs.shared)
    elif kind == "words":
        words = word_tiles(shape, int(size) if size else None)
        assert words
        yield Built(file, f"{op}_word_tiles", {**element, **words.macros}, THREADS)
    elif kind == "registers":
        blocks = RegisterBlocks(shape, int(size))
        yield Built(file, f"{op}_register_blocks", {**element, **blocks.macros}, blocks.threads)
    else:
        narrow = Narrow.of(shape, int(size))
        assert narrow
        yield Built(file, f"{op}_narrow", {**element, **narrow.macros}, narrow.block)


def kind_and_size(name: str) -> tuple[str, str]:
    """The kernel of tiles, and what is behind its name: ('packs', '16x8')."""
    kind = name.rstrip("0123456789x")
    return kind, name[len(kind) :]


def too_long(shape: Matrices) -> str | None:
    """Why kernels with tiles can't transpose these matrices; None if they can."""
    long = max(shape.rows, shape.cols) > _LONGEST
    return "counts rows and columns in 32 bits: for fewer than 2^32 of them" if long else None


def packs_are_best(shape: Matrices, multiprocessors: int) -> bool:
    """Whether the tiles of pack_tile.cuh are faster than tiles of words."""
    plan = PackTiles.of(shape, multiprocessors, aligned=True)
    words = WordTiles.of(shape, multiprocessors, aligned=True) or WordTiles.of(shape, multiprocessors, aligned=False)
    if plan is None or words is None:
        return False
    if shape.whole_sectors:
        # All kernels are good at these. Packs gain where there are many tiles, and halves where there are few.
        (many, full), waves = _MANY[shape.itemsize], plan.waves(multiprocessors)
        few = shape.itemsize < WORD and waves <= _FEW_WAVES and plan.grid >= multiprocessors
        return (few or waves >= many) and plan.full >= full
    # Costs are rough. Words of flat runs that are shifted are slower than they seem. Few tiles leave the device idle.
    slow = _SHIFTED if words.shifted and words.flat_x else 1
    idle = min(multiprocessors, words.grid) / min(multiprocessors, plan.grid)
    return idle * plan.cost() < (_FLAT_GAIN if plan.flat else _GAIN) * slow * words.cost()
