"""How the matrices of a batch are cut into tiles to be transposed. Twin of word_tile.cuh and register_blocks.cuh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from harness.collection.ops.elementwise import blocks, power_of_2_from
from harness.collection.ops.row_parts import MOST_ROWS

THREADS = 256  # of a block, at most
WORD = 4  # bytes
_BAND = 8  # tiles: see order.cuh
# Words of a thread on each side of a tile, at most. With 16 of them in flight, four blocks fit into the registers of a
# multiprocessor. Fewer where there are few tiles.
MOST_ITEMS = (16, 8, 4, 2)
TILES = 2  # that a multiprocessor should have at least
_MOST_SHARED = 32 * 1024  # bytes: four blocks fit into a multiprocessor's shared memory on every GPU from sm_80 on
# What a tile takes beside its words, as words of a thread, and what a run takes, since both of its ends are parts of
# sectors that other tiles have the rest of.
_SETUP, SECTOR_WORDS = 4, 16
# Bytes of a batch of halves up to which its lines are the first that caches give up. In a trial on an H200, which no
# committed run has, it gained some percent, and a larger one lost one.
_STREAMED = 96 * 2**20
_UNIT = 16  # elements: in multiples of these, tiles of aligned rows begin at whole sectors of 32 bytes
_LANES_ACROSS, _LANES_DOWN = 8, 4  # of a warp: see register_blocks.cuh
# Elements of a batch, by their bytes, up to which register_blocks.cuh is faster than kernels with shared memory.
_FEW = {2: 2**21, 4: 2**22}
_BLOCK_SIDE = 4  # elements: a thread of register_blocks.cuh has so many rows of so many
SECTOR = 32  # bytes


@dataclass(frozen=True, slots=True)
class Matrices:
    """A batch of contiguous matrices, whose entries are cells of some elements that stay together.

    rows, cols: in cells. itemsize: bytes of an element, 2 or 4.
    """

    batch: int
    rows: int
    cols: int
    itemsize: int
    cell: int = 1

    @property
    def matrix(self) -> int:
        """Elements of a matrix."""
        return self.rows * self.cols * self.cell

    @property
    def elements(self) -> int:
        return self.batch * self.matrix

    @property
    def is_copy(self) -> bool:
        """Whether the order of elements stays as it is."""
        return self.rows == 1 or self.cols == 1

    @property
    def whole_sectors(self) -> bool:
        """Whether all rows of both sides are whole sectors, if the tensors begin with one."""
        return not any(size * self.cell * self.itemsize % SECTOR for size in (self.rows, self.cols))

    def in_words(self) -> Self:
        """The same with words as elements, if cells are whole words."""
        if self.itemsize == WORD or self.cell * self.itemsize % WORD:
            return self
        return type(self)(self.batch, self.rows, self.cols, WORD, self.cell * self.itemsize // WORD)


@dataclass(frozen=True, slots=True)
class Runs:
    """One side of a tile: how threads take its words. Twin of Side in word_tile.cuh.

    count: runs of the tile. length: elements of a run. per_word: elements of a word. shifted: whether a run may begin
    inside of a word.
    """

    count: int
    length: int
    per_word: int
    shifted: bool

    @property
    def words(self) -> int:
        """Words that a run reaches into at most."""
        return self.length // 2 + 1 if self.shifted else blocks(self.length, self.per_word)

    @property
    def items(self) -> int:
        """Words of a thread."""
        words = self.words
        slots = power_of_2_from(words) if words <= THREADS // 2 else THREADS
        return blocks(self.count, THREADS // slots) * blocks(words, slots)


@dataclass(frozen=True, slots=True)
class WordTiles:
    """What the kernel of word_tile.cuh is compiled for and launched with.

    matrices: how many whole matrices a block has, or 1. rows, cols: of a tile, in cells. flat_x, flat_y: whether the
    tile's memory is one run on that side. shifted: whether runs of halves may begin inside of a word.
    """

    shape: Matrices
    matrices: int
    rows: int
    cols: int
    flat_x: bool
    flat_y: bool
    shifted: bool
    band: ClassVar[int] = _BAND

    @classmethod
    def of(cls, shape: Matrices, multiprocessors: int, *, aligned: bool, items: int | None = None) -> Self | None:
        """The plan for a batch with at least one element, and at least two rows and two columns.

        aligned: whether x and y begin with whole words. None if they do, but runs of halves don't. items: words of a
        thread at most, unless the number of tiles decides.
        """
        shifted = shape.itemsize < WORD and not aligned
        if aligned and any(size * shape.cell * shape.itemsize % WORD for size in (shape.rows, shape.cols)):
            return None
        best: Self | None = None
        for most in (items,) if items else MOST_ITEMS:
            plan = min(cls._candidates(shape, most, shifted), key=cls.cost, default=None)
            if plan and (best is None or best.grid < TILES * multiprocessors):
                best = plan
        return best

    @classmethod
    def _candidates(cls, shape: Matrices, items: int, shifted: bool) -> Iterator[Self]:
        """Plans in which a thread has up to so many words on each side."""
        every_row, every_col = (_cuts(size, shape, items, shifted) for size in (shape.rows, shape.cols))
        for rows, cols in itertools.product(every_row, every_col):
            for flat_x, flat_y in itertools.product({False, cols == shape.cols}, {False, rows == shape.rows}):
                whole = flat_x and flat_y
                most = (items * THREADS * (WORD // shape.itemsize) - shifted) // shape.matrix
                plan = cls(shape, max(1, min(shape.batch, most)) if whole else 1, rows, cols, flat_x, flat_y, shifted)
                if max(plan.x.items, plan.y.items) <= items and plan.shared <= _MOST_SHARED:
                    yield plan

    def cost(self) -> float:
        """Roughly, the words that all blocks have room for, and what else takes as long as moving so many words."""
        # Elements of a flat side need a division to find their places, unless the tile has them in the same order.
        flat_x, flat_y = self.cols * self.shape.cell, self.rows * self.shape.cell
        x = self.x.items * (1.25 if self.flat_x and flat_x % 2 == 0 else 1)
        y = self.y.items * (1.5 if self.flat_x and self.flat_y else 1.25 if self.flat_y and flat_y % 2 == 0 else 1)
        tile = (x + y + _SETUP) * THREADS + SECTOR_WORDS * (self.x.count + self.y.count)
        full = (self.shape.batch // self.matrices) * (self.shape.rows // self.rows) * (self.shape.cols // self.cols)
        return (2 * self.grid - full) * tile

    @property
    def x(self) -> Runs:
        return self._runs(self.flat_x, self.rows, self.cols)

    @property
    def y(self) -> Runs:
        return self._runs(self.flat_y, self.cols, self.rows)

    def _runs(self, flat: bool, count: int, cells: int) -> Runs:
        length = cells * self.shape.cell
        per_word = WORD // self.shape.itemsize
        return Runs(1 if flat else count, length * count * self.matrices if flat else length, per_word, self.shifted)

    @property
    def shared(self) -> int:
        """Bytes of the tile in shared memory."""
        as_y = self.flat_y and not self.flat_x
        line = (self.rows if as_y else self.cols) * self.shape.cell | 1
        return (self.cols if as_y else self.matrices * self.rows) * line * self.shape.itemsize

    @property
    def down(self) -> int:
        return blocks(self.shape.rows, self.rows)

    @property
    def across(self) -> int:
        return blocks(self.shape.cols, self.cols)

    @property
    def grid(self) -> int:
        return blocks(self.shape.batch, self.matrices) * self.down * self.across

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {
            "THREADS": THREADS,
            "BAND": self.band,
            "MATRICES": self.matrices,
            "TILE_ROWS": self.rows,
            "TILE_COLS": self.cols,
            "CELL": self.shape.cell,
            "FLAT_X": int(self.flat_x),
            "FLAT_Y": int(self.flat_y),
            "SHIFTED": int(self.shifted),
            "STREAM": int(self.shape.itemsize < WORD and self.shape.elements * self.shape.itemsize <= _STREAMED),
        }


def _cuts(size: int, shape: Matrices, items: int, shifted: bool) -> set[int]:
    """Sizes of pieces into which `size` cells may be cut, so that runs fill threads: powers of two, or whole blocks."""
    per_word = WORD // shape.itemsize
    few = [1 << power for power in range((THREADS // 2).bit_length())]
    words = few + [THREADS * pieces for pieces in range(1, items + 1)]
    found = {size} if size * shape.cell <= items * THREADS * per_word else set()
    for most in {(count * per_word - shifted) // shape.cell for count in words}:
        if 1 <= most < size:
            # About equal pieces, so that the last one isn't much smaller; of whole sectors where the other pieces are.
            unit = _UNIT if most % _UNIT == 0 else 1 if shifted or shape.cell > 1 else per_word
            found |= {most, blocks(blocks(size, blocks(size, most)), unit) * unit}
    return {cut for cut in found if shifted or cut == size or cut * shape.cell % per_word == 0} or {1}


@dataclass(frozen=True, slots=True)
class RegisterBlocks:
    """What the kernel of register_blocks.cuh is compiled for and launched with.

    warps_across: warps of a block that lie side by side. The other warps lie below them.
    """

    shape: Matrices
    warps_across: int
    threads: ClassVar[int] = 128
    across: ClassVar[tuple[int, ...]] = (2, 4, 1)

    @classmethod
    def of(cls, shape: Matrices) -> Self | None:
        """The plan for a batch; None but for few elements, in rows of whole sectors that are long enough for a warp."""
        if shape.elements > _FEW[shape.itemsize] or not cls.fits(shape):
            return None
        # Two warps side by side are the fastest where they leave no more of the tiles empty than other shapes do.
        return min((cls(shape, warps) for warps in cls.across), key=cls._cost)

    @classmethod
    def fits(cls, shape: Matrices) -> bool:
        """Whether rows are whole sectors, long enough for a warp, and the grid's second and third numbers suffice."""
        short = shape.rows < _LANES_DOWN * _BLOCK_SIDE or shape.cols < _LANES_ACROSS * _BLOCK_SIDE
        many = max(shape.batch, blocks(shape.rows, _LANES_DOWN * _BLOCK_SIDE)) > MOST_ROWS
        return shape.cell == 1 and not short and not many and shape.whole_sectors

    def _cost(self) -> int:
        """Roughly, the elements that all tiles have room for, and the elements that the ends of rows cost."""
        return math.prod(self.grid) * (self.rows * self.cols + 8 * (self.rows + self.cols))

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        warps = self.threads // (_LANES_ACROSS * _LANES_DOWN)
        return _BLOCK_SIDE * _LANES_DOWN * (warps // self.warps_across)

    @property
    def cols(self) -> int:
        """Columns of a tile."""
        return _BLOCK_SIDE * _LANES_ACROSS * self.warps_across

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tiles across, tiles down, and matrices."""
        return blocks(self.shape.cols, self.cols), blocks(self.shape.rows, self.rows), self.shape.batch

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"THREADS": self.threads, "WARPS_ACROSS": self.warps_across}
