"""Tiles of packs: what pack_tile.cuh would read and write, in numpy, against a plain transpose."""

from __future__ import annotations

import numpy as np
import pytest

from harness.collection.ops.layouts._pack_plan import _FLAT_TILES, _PACK_TILES, PackTiles
from harness.collection.ops.layouts._transpose_plan import Matrices, WordTiles
from harness.collection.ops.layouts._transpose_tuning import packs_are_best, ruled
from tests.one_test import one_test
from tests.rare import rare

WARP_PACKS, WARP_COLS = 8, 4


class Tile:
    """PackTile of pack_tile.cuh, with the constants of its compilation."""

    def __init__(self, plan, matrix, down, across, x_offset, y_offset):
        s = plan.shape
        self.plan, self.s, self.pack, self.grain = plan, s, 16 // s.itemsize, plan.grain
        self.matrix, self.row, self.col = matrix * s.matrix, down * plan.rows, across * plan.cols
        self.x_at, self.y_at = x_offset + self.matrix, y_offset + self.matrix
        alike = s.rows % self.grain == 0
        self.above = self.y_at % self.grain if alike else self.grain - 1
        self.lines = plan.rows if alike else plan.rows + self.grain - 1
        most = plan.rows + self.grain - 1
        self.pitch = plan.cols if plan.flat else (plan.packs_across + 1) * self.pack
        self.group = (plan.cols if plan.flat else (self.pitch + 6) // 8 * 8 + 1) * self.pack
        self.flat_packs = (most * plan.cols + self.pack - 2) // self.pack + 1
        self.shared = self.flat_packs * self.pack if plan.flat else ((most - 1) // self.pack + 1) * self.group

    def shift(self, line):
        return (self.x_at + (self.row - self.above + line) * self.s.cols + self.col) % self.pack

    def place(self, line):
        """In elements."""
        return line // self.pack * self.group + line % self.pack * self.pitch + self.shift(line * (not self.plan.flat))

    def packs(self, full):
        """Packs that threads load: each one's first element of x, and its place in shared memory."""
        s, pack = self.s, self.pack
        corner = self.matrix + (self.row - self.above) * s.cols + self.col
        if self.plan.flat:
            shift, row = self.shift(0), self.row - self.above
            begin, to = max(0, -row) * s.cols, shift + min(s.rows - row, self.lines) * s.cols
            j = np.arange(0, -(-self.flat_packs // self.plan.threads) * self.plan.threads * pack, pack)
            j = j[(j < to) & (full | (j + pack > shift + begin))]
            return corner - shift + j, j
        across, lanes = self.plan.packs_across, 2 * self.plan.packs_across
        at_once = self.plan.threads // lanes
        steps = np.arange(-(-self.lines // at_once))
        thread, k = np.meshgrid(np.arange(self.plan.threads), steps, indexing="ij")
        first_line, number = thread // lanes, thread % lanes
        line, shift = first_line + k * at_once, self.shift(first_line)
        assert (self.shift(line) == shift).all()
        place = self.place(first_line) - shift + number * pack + k * (at_once // pack * self.group)
        mine = (line < self.lines) & (number <= across) & ((number < across) | (shift > 0))
        line, number, place = line[mine], number[mine], place[mine]
        width, row = min(self.plan.cols, s.cols - self.col), self.row - self.above + line
        loaded = full | ((row >= 0) & (row < s.rows) & (number * pack < self.shift(line) + width))
        return (corner + line * s.cols + number * pack - self.shift(line))[loaded], place[loaded]

    def gathers(self):
        """For all threads and k: where in shared memory they read first, their column, and their first row of y."""
        thread, k = np.meshgrid(np.arange(self.plan.threads), np.arange(self.pack), indexing="ij")
        warp, lane = thread // 32, thread % 32
        pack, lane_col = lane % WARP_PACKS, lane // WARP_PACKS
        turn = self.s.rows * self.s.cols % 4
        near = turn % 2 or self.pack == 4
        column = warp // 2 * 2 * WARP_COLS + (warp % 2 * WARP_COLS + lane_col if near else warp % 2 + 2 * lane_col)
        swapped = (lane_col // 2 > 0) & (self.pack == 8) & (turn == 1)
        rise = (self.y_at + (self.col + column) * self.s.rows) % self.grain
        line = pack * self.pack + self.above - rise + np.where(swapped, k ^ 1, k)
        spot = self.place(line) + column
        order = np.where(swapped, k ^ 1, k)
        return spot, column[:, 0], (self.row - rise + pack * self.pack)[:, 0], order


def transposed(plan, x, x_offset, y_offset):
    """y as the kernel would write it, and how often each of its elements is written."""
    s = plan.shape
    end, y, written = s.elements, np.full(s.elements, -1), np.zeros(s.elements, int)
    for matrix in range(s.batch):
        for down in range(plan.down):
            for across in range(plan.across):
                tile = Tile(plan, matrix, down, across, x_offset, y_offset)
                if tile.row - tile.above < s.rows:
                    _move(tile, x, y, written, end, x_offset, y_offset)
    return y, written


def _move(tile, x, y, written, end, x_offset, y_offset):
    s, plan, pack = tile.s, tile.plan, tile.pack
    corner = tile.matrix + (tile.row - tile.above) * s.cols + tile.col
    full = tile.row >= tile.above and tile.row - tile.above + tile.lines <= s.rows and plan.cols <= s.cols - tile.col
    full &= corner >= pack and corner + (tile.lines - 1) * s.cols + plan.cols + pack <= end
    first, place = tile.packs(full)
    assert (place % pack == 0).all()
    assert len(np.unique(place)) == len(place)
    assert (place + pack <= tile.shared).all()
    assert ((first >= 0) & (first + pack <= end)).all() or not full
    assert ((first + x_offset) % pack == 0).all()
    shared, source = np.full(tile.shared, -1), first[:, None] + np.arange(pack)
    inside = (source >= 0) & (source < end)
    shared[(place[:, None] + np.arange(pack))[inside]] = x[source[inside]]
    spot, column, first_row, order = tile.gathers()
    # Axes: steps across and down the tile, threads, elements of a pack.
    c = np.arange(0, plan.cols, plan.threads // 32 * WARP_COLS)[:, None, None, None]
    p = np.arange(0, plan.packs_down, WARP_PACKS)[None, :, None, None]
    k, column = np.arange(pack), column[:, None]
    exists = tile.col + column + c < s.cols
    at = np.where(exists, spot + p * tile.group + c, 0)
    value = np.take_along_axis(shared[at], np.broadcast_to(order, at.shape), axis=3)
    row = first_row[:, None] + p * pack + k
    ok = (row >= 0) & (row < s.rows) & exists
    assert (ok == exists).all() or not full
    to = tile.matrix + (tile.col + column + c) * s.rows + row
    assert ((to - k + y_offset)[ok] % pack == 0).all()
    y[to[ok]] = value[ok]
    written += np.bincount(to[ok], minlength=len(written))


SHAPES = [
    (1, 257, 131),
    (1, 130, 515),
    (2, 256, 129),
    (1, 384, 256),
    (2, 131, 160),
    (1, 129, 263),
    (3, 64, 66),
    (1, 320, 133),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("itemsize", "x_offset", "y_offset"), [(2, 0, 0), rare(2, 5, 0), rare(2, 1, 7), rare(4, 0, 0), (4, 3, 2)]
)
def test_every_element_moves_once(shape, itemsize, x_offset, y_offset):
    matrices = Matrices(*shape, itemsize)
    x = np.arange(matrices.elements)
    expected = x.reshape(shape).transpose(0, 2, 1).reshape(-1)
    across, down = (16, 8) if x_offset == y_offset else (8, 8) if itemsize == 2 else (16, 16)
    plan = PackTiles(matrices, across, down, aligned=y_offset == 0)
    y, written = transposed(plan, x, x_offset % (16 // itemsize), y_offset)
    assert (written == 1).all()
    assert (y == expected).all()


@pytest.mark.parametrize("shape", [(1, 512, 49), (2, 300, 17), (3, 257, 50), (1, 131, 8), (2, 64, 63)], ids=str)
@pytest.mark.parametrize("itemsize", [2, rare(4)])
@pytest.mark.parametrize(("x_offset", "y_offset"), [(0, 0), rare(1, 3), rare(5, 0), rare(0, 7), (3, 12)])
def test_every_element_of_a_narrow_matrix_moves_once(shape, itemsize, x_offset, y_offset):
    matrices = Matrices(*shape, itemsize)
    x = np.arange(matrices.elements)
    expected = x.reshape(shape).transpose(0, 2, 1).reshape(-1)
    for down in _FLAT_TILES:
        plan = PackTiles(matrices, 1, down, aligned=y_offset == 0, flat=True)
        y, written = transposed(plan, x, x_offset % (16 // itemsize), y_offset)
        assert (written == 1).all()
        assert (y == expected).all()


@one_test("itemsize", [2, 4])
@one_test("packs", [(16, 16), (16, 8), (8, 8), (1, 16), (1, 8)], ids=str)
def test_a_tile_has_the_room_that_the_kernel_counts(packs, itemsize):
    """The static_assert of pack_tile.cuh says the same to the compiler."""
    for cols in (49, 63) if packs[0] == 1 else (8193,):
        plan = PackTiles(Matrices(1, 8191, cols, itemsize), *packs, aligned=True, flat=packs[0] == 1)
        assert plan.shared == Tile(plan, 0, 0, 0, 0, 0).shared * itemsize


def wavefronts(rows, cols, itemsize):
    """What a read of the tile takes, of which one would be the least: the mean of all warps and k."""
    plan = PackTiles(Matrices(1, rows, cols, itemsize), *_PACK_TILES[itemsize][0], aligned=True)
    words = Tile(plan, 0, 1, 1, 0, 0).gathers()[0].reshape(-1, 32, 16 // itemsize) * itemsize // 4
    return np.mean([np.bincount(np.unique(warp[:, k]) % 32).max() for warp in words for k in range(words.shape[2])])


@pytest.mark.slow  # banks cost time alone
@pytest.mark.parametrize("itemsize", [2, 4])
def test_banks_have_few_conflicts(itemsize):
    """At any sizes. The worst sizes are where diagonals of the tile lie in one place of all packs."""
    found = {(r, c): wavefronts(4096 + r, 4096 + c, itemsize) for r in range(8) for c in range(8)}
    assert np.mean(list(found.values())) <= 2
    assert max(found.values()) <= 4


@one_test(
    ("shape", "itemsizes"),
    [
        ((1, 8192, 8192), (2, 4)),
        ((1, 2048, 2048), (4,)),
        ((1, 1024, 1024), (2,)),
        ((12, 512, 512), (2,)),
        ((1, 1024, 4096), (4,)),
        ((1, 8191, 8193), (2, 4)),
        ((1, 50257, 768), (2, 4)),
        ((1, 2049, 4097), (2, 4)),
        ((1, 30_000_000, 3), ()),
        ((1024, 196, 256), (4,)),
        ((1024, 784, 256), (4,)),
        ((512, 768, 197), (2, 4)),
        ((2048, 512, 49), (2, 4)),
        ((2048, 512, 48), ()),
        ((2048, 49, 512), ()),
    ],
    ids=str,
)
def test_large_matrices_are_for_packs(shape, itemsizes):
    found = tuple(size for size in (2, 4) if packs_are_best(Matrices(*shape, size), 132))
    assert found == itemsizes


@one_test("itemsize", [2, 4])
@one_test("size", [64, 100, 200, 300, 600])
def test_small_matrices_leave_no_more_multiprocessors_idle_than_words_do(size, itemsize):
    matrices = Matrices(1, size, size, itemsize)
    words = WordTiles.of(matrices, 132, aligned=True) or WordTiles.of(matrices, 132, aligned=False)
    packs = PackTiles.of(matrices, 132, aligned=True)
    assert packs is None or not packs_are_best(matrices, 132) or packs.grid >= min(132, words.grid) / 2


@one_test(
    ("rows", "cols", "itemsize", "possible"),
    [
        (1024, 1024, 2, True),
        (768, 768, 2, True),
        (2048, 1024, 2, True),
        (2048, 1040, 2, False),
        (1024, 1024, 4, True),
        (2048, 2048, 4, False),
        (4000, 1000, 4, False),
        (1600, 1000, 4, True),
        (1600, 1001, 4, False),
    ],
)
def test_few_elements_in_whole_sectors_go_through_registers(rows, cols, itemsize, possible):
    assert ruled(Matrices(1, rows, cols, itemsize), 132).startswith("registers") == possible
