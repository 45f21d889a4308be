"""Tiles of cells: what cell_tile.cuh would read and write, in numpy, against a plain permutation."""

from __future__ import annotations

import numpy as np
import pytest

from harness.ops.layouts._pack_plan import _CELL_LINES, CellTiles
from harness.ops.layouts._transpose_plan import Matrices

PACK, GRAIN, THREADS = 8, 16, 256


class Tile:
    """A block of the kernel: its tile in shared memory, and the stores of its threads."""

    def __init__(self, plan, x, x_offset, y_offset, block):
        self.s = s = plan.shape
        number, self.row = block // plan.down, block % plan.down * _CELL_LINES
        self.matrix = number * s.matrix
        self.line, self.run = s.cols * s.cell, s.rows * s.cell
        self.y_offset, self.y_at = y_offset, (y_offset + self.matrix) % GRAIN
        self.above = int(self.run % GRAIN != 0 or self.y_at != 0)
        self.first_line, self.end_line = 1 - int(self.above and self.row > 0), min(_CELL_LINES, s.rows - self.row) + 1
        self.slanted = self.line % 32 == 0 and (self.line + s.cell) % 64 != 0
        corner = self.matrix + (self.row - self.above) * self.line
        self.shift = (x_offset + corner) % PACK
        self.shared = np.full((((_CELL_LINES + 1) * self.line + PACK - 2) // PACK + 2) * PACK, -1)
        for j in range(self.place(self.first_line) // PACK * PACK, self.place(self.end_line), PACK):
            first = corner - self.shift + j
            assert j + PACK <= len(self.shared)
            assert (first + x_offset) % PACK == 0
            for e in range(max(0, -first), min(PACK, s.elements - first)):
                self.shared[j + e] = x[first + e]

    def has(self, line):
        return (line >= self.first_line) & (line < self.end_line)

    def rise(self, col):
        return (self.y_at + col * self.run) % GRAIN

    def place(self, line):
        return self.shift + (line + self.above - 1) * self.line

    def target(self, line, col):
        return self.matrix + col * self.run + (self.row - 1) * self.s.cell + line * self.s.cell

    def column(self, turn, line):
        return (turn + line) % self.s.cols if self.slanted else turn

    def store(self, y, written, to, source):
        assert (y[to] == -1).all()
        y[to] = self.shared[source]
        np.add.at(written, to, 1)

    def store_inside(self, y, written):
        cell = self.s.cell
        packs = cell // PACK
        at_once = max(THREADS // (_CELL_LINES * packs), 1)
        slot = np.arange(at_once * _CELL_LINES * packs)
        number, line, first_col = slot % packs, slot // packs % _CELL_LINES + 1, slot // packs // _CELL_LINES
        for k in range(0, self.s.cols, at_once):
            turn = first_col + k
            col = self.column(turn, line)
            in_cell = number * PACK + (-self.rise(col) - (line - 1) * cell) % PACK
            fits = in_cell + np.where(line == _CELL_LINES, self.rise(col), 0) <= cell - PACK
            ok = (turn < self.s.cols) & self.has(line) & fits
            at, to = (self.place(line) + col * cell + in_cell)[ok], (self.target(line, col) + in_cell)[ok]
            # The word behind the pack is read, too.
            assert at.min(initial=0) >= 0
            assert at.max(initial=0) // 2 + 4 < len(self.shared) // 2
            assert ((to + self.y_offset) % PACK == 0).all()
            for e in range(PACK):
                self.store(y, written, to + e, at + e)

    def store_across(self, y, written):
        cell, lines = self.s.cell, _CELL_LINES + 1
        slot = np.arange(self.s.cols * lines)
        number = slot % lines
        line, col = np.maximum(number, 1), self.column(slot // lines, number)
        rise = self.rise(col)
        head = np.where(number > 0, (rise + (line - 1) * cell) % PACK, np.where(rise < PACK, 0, rise))
        begins, goes_on = self.has(line - 1), self.has(line)
        here, to = self.place(line) + col * cell - head, self.target(line, col) - head
        crosses = (head > 0) & (begins | goes_on)
        assert ((to + self.y_offset)[crosses] % PACK == 0).all()
        for e in range(PACK):
            source = here + e - np.where(e < head, self.line - cell, 0)
            stored = (head > 0) & np.where(e < head, begins, goes_on)
            assert source[stored].min(initial=0) >= 0
            assert source[stored].max(initial=0) < len(self.shared)
            self.store(y, written, to[stored] + e, source[stored])


def transposed(plan, x, x_offset, y_offset):
    """y as the kernel would write it, and how often each of its elements is written."""
    y, written = np.full(plan.shape.elements, -1), np.zeros(plan.shape.elements, int)
    for block in range(plan.grid):
        tile = Tile(plan, x, x_offset, y_offset, block)
        tile.store_inside(y, written)
        tile.store_across(y, written)
    return y, written


@pytest.mark.parametrize(
    "shape",
    [
        (2, 197, 12, 49),
        (3, 32, 5, 16),
        (2, 16, 3, 64),
        (1, 5, 2, 17),
        (2, 33, 7, 50),
        (1, 64, 1, 31),
        (2, 31, 3, 145),  # more packs of a column than threads
        (3, 18, 8, 20),  # slanted, with more lines than columns
        (2, 17, 32, 17),
    ],
    ids=str,
)
@pytest.mark.parametrize(("x_offset", "y_offset"), [(0, 0), (1, 3), (5, 0), (0, 7), (3, 16), (8, 8)])
def test_every_element_moves_once(shape, x_offset, y_offset):
    batch, rows, cols, cell = shape
    matrices = Matrices(batch, rows, cols, 2, cell)
    plan = CellTiles.of(matrices, aligned=(x_offset | y_offset) % GRAIN == 0)
    assert plan
    x = np.arange(matrices.elements)
    y, written = transposed(plan, x, x_offset, y_offset)
    assert (written == 1).all()
    assert (y == x.reshape(shape).transpose(0, 2, 1, 3).reshape(-1)).all()


def test_other_cells_have_other_kernels():
    for shape, itemsize in [((2, 197, 12, 49), 4), ((2, 197, 12, 15), 2), ((2, 197, 12, 200), 2)]:
        batch, rows, cols, cell = shape
        assert CellTiles.of(Matrices(batch, rows, cols, itemsize, cell), aligned=True) is None
