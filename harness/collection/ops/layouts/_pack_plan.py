"""How matrices are cut where packs go through shared memory. Twin of pack_tile.cuh, cell_tile.cuh and narrow.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from harness.collection.ops.elementwise import PACK_BYTES, blocks
from harness.collection.ops.layouts._transpose_plan import SECTOR, SECTOR_WORDS, THREADS, WORD, Matrices

# Packs of a row of x and of a row of y that a tile of pack_tile.cuh may have, by bytes of an element: the first is
# preferred. With larger tiles, shared memory would leave less to the L1 cache, through which x is read.
_SIDES = (16, 8)
_PACK_TILES = {2: ((16, 8), (8, 8)), 4: ((16, 16), (16, 8))}
_TILE_THREADS = {2: (512, 2048), 4: (512, 1536)}  # of a block of the preferred tiles, and of a multiprocessor at least
_FEWER_THREADS = THREADS, 1280  # the same for other tiles
_WAVES = 2  # of blocks that the preferred tiles should be at least
_GAIN_OF_PREFERRED = 1.1  # what preferred tiles may cost more than other tiles and still be taken
_FLAT_TILES = (16, 8)  # packs of a row of y that a tile of a narrow matrix may have
_WARP_PACKS = 8  # packs of a row of y that are stored at once: see pack_tile.cuh
# What a tile of packs takes, as words of a thread of word_tile.cuh, which are about ten instructions each: beside its
# packs, for a pack that is loaded, and for an element that is stored.
_PACK_SETUP, _PACK_LOAD, _PACK_ELEMENT = 8, 0.3, 0.2
_CELL_LINES = 16  # rows of a tile of cell_tile.cuh: a multiple of 16
_CELL_SHARED = 44 * 1024  # bytes of a tile of cell_tile.cuh at most
# Bytes of such a tile up to which shared memory leaves room for L1, and threads that a multiprocessor should hold then,
# and with larger tiles.
_CELL_SMALL, _CELL_THREADS, _CELL_FEWER = 22 * 1024, 2048, 1536
_BANKED = 8  # columns: rows of 8, 16, 24 ... columns lie in few banks as a FLAT tile has them
_NARROW = (3, 5, 7)  # rows or columns: see narrow.cuh


@dataclass(frozen=True, slots=True)
class PackTiles:
    """What the kernel of pack_tile.cuh is compiled for and launched with.

    packs_across, packs_down: of a tile's row of x, and of its row of y. aligned: whether y begins with a whole sector.
    flat: whether the tile's rows are whole rows of x; then packs_across is 1, and means nothing.
    """

    shape: Matrices
    packs_across: int
    packs_down: int
    aligned: bool
    flat: bool = False
    band: ClassVar[int] = 4

    @classmethod
    def of(cls, shape: Matrices, multiprocessors: int, *, aligned: bool) -> Self | None:
        """The plan for a batch; None for cells of several elements, and for matrices smaller than any tile."""
        if shape.cell > 1:
            return None
        plans = [cls(shape, across, down, aligned) for across, down in _PACK_TILES[shape.itemsize]]
        if PACK_BYTES // shape.itemsize <= shape.cols < plans[0].cols and shape.cols % _BANKED:
            plans = [cls(shape, 1, down, aligned, flat=True) for down in _FLAT_TILES]
        plans = [plan for plan in plans if plan.cols <= shape.cols and plan.rows <= shape.rows]
        enough = [plan for plan in plans if plan.waves(multiprocessors) >= (_WAVES if plan.is_largest else 1)]
        if not enough:
            return plans[-1] if plans else None
        return min(enough, key=lambda plan: plan.cost() / (_GAIN_OF_PREFERRED if plan.is_largest else 1))

    @classmethod
    def sizes(cls, shape: Matrices) -> list[tuple[int, int]]:
        """Packs across and packs down of all tiles that aren't larger than the matrices."""
        plans = [cls(shape, across, down, aligned=True) for across in _SIDES for down in _SIDES]
        return [
            (plan.packs_across, plan.packs_down)
            for plan in plans
            if plan.cols <= shape.cols and plan.rows <= shape.rows
        ]

    def waves(self, multiprocessors: int) -> float:
        """Blocks over the number of blocks that the GPU holds at a time."""
        threads, resident = self._threads
        return self.grid / (multiprocessors * (resident // threads))

    def cost(self) -> float:
        """The same as WordTiles.cost: roughly, words that all blocks have room for, and what takes as long as more."""
        pack = PACK_BYTES // self.shape.itemsize
        if self.flat:
            loads = blocks(self.lines * self.cols, pack * self.threads)
        else:
            loads = blocks(self.lines, self.threads // (2 * self.packs_across))
        stores = blocks(self.cols, self.threads // _WARP_PACKS) * self.packs_down // _WARP_PACKS
        of_thread = _PACK_SETUP + _PACK_LOAD * loads + _PACK_ELEMENT * pack * stores
        above = int(self.lines > self.rows)  # the uppermost tiles have lines above the matrix
        full = self.shape.batch * max(0, self.shape.rows // self.rows - above) * (self.shape.cols // self.cols)
        return (2 * self.grid - full) * (of_thread * self.threads + SECTOR_WORDS * (1 if self.flat else self.lines))

    @property
    def full(self) -> float:
        """The share of the tiles' room that has elements."""
        return self.shape.elements / (self.grid * self.rows * self.cols)

    @property
    def is_largest(self) -> bool:
        """Whether the tiles are the preferred ones."""
        return not self.flat and (self.packs_across, self.packs_down) == _PACK_TILES[self.shape.itemsize][0]

    @property
    def _threads(self) -> tuple[int, int]:
        return _TILE_THREADS[self.shape.itemsize] if self.is_largest else _FEWER_THREADS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self._threads[0]

    @property
    def grain(self) -> int:
        """Elements of a sector."""
        return SECTOR // self.shape.itemsize

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return PACK_BYTES // self.shape.itemsize * self.packs_down

    @property
    def cols(self) -> int:
        """Columns of a tile."""
        return self.shape.cols if self.flat else PACK_BYTES // self.shape.itemsize * self.packs_across

    @property
    def lines(self) -> int:
        """Rows of x that a block reads."""
        return self.rows + (self.grain - 1 if self.shape.rows % self.grain else 0)

    @property
    def shared(self) -> int:
        """Bytes of a tile in shared memory: see pack_tile.cuh."""
        pack, most = PACK_BYTES // self.shape.itemsize, self.rows + self.grain - 1
        if self.flat:
            packs = (most * self.cols + pack - 2) // pack + 1
        else:
            packs = blocks(most, pack) * (((self.packs_across + 1) * pack + 6) // 8 * 8 + 1)
        return packs * PACK_BYTES

    @property
    def down(self) -> int:
        # Pieces of the rows of y end above their tile, but where all of them begin with whole sectors.
        above = 0 if self.aligned and self.shape.rows % self.grain == 0 else self.grain - 1
        return blocks(self.shape.rows + above, self.rows)

    @property
    def across(self) -> int:
        return blocks(self.shape.cols, self.cols)

    @property
    def grid(self) -> int:
        return self.shape.batch * self.down * self.across

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {
            "THREADS": self.threads,
            "RESIDENT": self._threads[1],
            "KEPT_IN_L1": int(not self.flat),
            "BAND": self.band,
            "SHARED_PACKS": self.shared // PACK_BYTES,
            "PACKS_ACROSS": self.packs_across,
            "PACKS_DOWN": self.packs_down,
            "FLAT_COLS": self.shape.cols if self.flat else 0,
        }


@dataclass(frozen=True, slots=True)
class CellTiles:
    """What the kernel of cell_tile.cuh is compiled for and launched with: halves in cells of a sector or more.

    aligned: whether y begins with a whole sector.
    """

    shape: Matrices
    aligned: bool

    @classmethod
    def of(cls, shape: Matrices, *, aligned: bool) -> Self | None:
        """The plan for a batch; None for other cells, and where shared memory has no room for a tile's rows."""
        plan = cls(shape, aligned)
        short = shape.itemsize == WORD or shape.cell * shape.itemsize < SECTOR
        line = shape.cols * shape.cell * shape.itemsize
        return None if short or (_CELL_LINES + 1) * line > _CELL_SHARED else plan

    @property
    def down(self) -> int:
        """Tiles of a matrix: pieces of the rows of y end above their tile, unless all begin with whole sectors."""
        whole = self.aligned and self.shape.rows * self.shape.cell * self.shape.itemsize % SECTOR == 0
        return blocks(self.shape.rows + (not whole), _CELL_LINES)

    @property
    def grid(self) -> int:
        return self.shape.batch * self.down

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        small = (_CELL_LINES + 1) * self.shape.cols * self.shape.cell * self.shape.itemsize <= _CELL_SMALL
        resident = _CELL_THREADS if small else _CELL_FEWER
        return {
            "THREADS": THREADS,
            "RESIDENT": resident,
            "KEPT_IN_L1": int(small),
            "CELL_LINES": _CELL_LINES,
            "COLS": self.shape.cols,
            "CELL": self.shape.cell,
        }


@dataclass(frozen=True, slots=True)
class Narrow:
    """What the kernel of narrow.cuh is compiled for and launched with: matrices of few rows, or few columns.

    to_rows: whether x has few columns, and y few rows. block: threads of a block.
    """

    shape: Matrices
    to_rows: bool
    block: int = THREADS

    @classmethod
    def of(cls, shape: Matrices, block: int = THREADS) -> Self | None:
        """The plan for a batch; None where another number of rows and columns is few, or rows aren't whole packs."""
        plan = cls(shape, shape.cols in _NARROW, block)
        few = plan.narrow in _NARROW and shape.cell == 1
        return plan if few and plan.long % (PACK_BYTES // shape.itemsize) == 0 and plan.threads < 2**31 else None

    @property
    def narrow(self) -> int:
        return self.shape.cols if self.to_rows else self.shape.rows

    @property
    def long(self) -> int:
        return self.shape.rows if self.to_rows else self.shape.cols

    @property
    def packs(self) -> int:
        """Packs of a long row."""
        return self.long * self.shape.itemsize // PACK_BYTES

    @property
    def threads(self) -> int:
        return self.shape.batch * self.packs

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"THREADS": self.block, "NARROW": self.narrow, "TO_ROWS": int(self.to_rows)}
