"""Tiles of cells: what cell_tile.cuh would read and write, in numpy, against a plain permutation."""

from __future__ import annotations

import numpy as np
import pytest

from harness.collection.ops.layouts._pack_plan import _CELL_LINES, CellTiles
from harness.collection.ops.layouts._transpose_plan import Matrices
from tests.rare import rare

PACK, GRAIN = 8, 16


def transposed(plan, x, x_offset, y_offset):
    """y as the kernel would write it, and how often each of its elements is written."""
    s = plan.shape
    y, written = np.full(s.elements, -1), np.zeros(s.elements, int)
    line, run = s.cols * s.cell, s.rows * s.cell
    shared_packs = ((_CELL_LINES + 1) * line + PACK - 2) // PACK + 1
    piece_packs = _CELL_LINES * s.cell // PACK
    tasks_down = (piece_packs - 1) // 8 + 1
    tasks = ((s.cols - 1) // 4 + 1) * tasks_down
    task, lane = np.meshgrid(np.arange(tasks), np.arange(32), indexing="ij")
    col, pack = task // tasks_down * 4 + lane // 8, task % tasks_down * 8 + lane % 8
    for block in range(plan.grid):
        number, row = block // plan.down, block % plan.down * _CELL_LINES
        matrix = number * s.matrix
        y_at = (y_offset + matrix) % GRAIN
        above = int(run % GRAIN != 0 or y_at != 0)
        corner = matrix + (row - above) * line
        shift = (x_offset + corner) % PACK
        begin, lines = line if row < above else 0, min(_CELL_LINES, s.rows - row) + above
        shared = np.full(shared_packs * PACK, -1)
        for j in range(0, shift + lines * line, PACK):
            if j + PACK > shift + begin:
                assert j + PACK <= len(shared)
                first = corner - shift + j
                assert (first + x_offset) % PACK == 0
                for e in range(max(0, -first), min(PACK, s.elements - first)):
                    shared[j + e] = x[first + e]
        rise = (y_at + col * run) % GRAIN
        first = row * s.cell + pack * PACK - rise
        ok = (col < s.cols) & (pack < piece_packs) & (first < run) & (first > -PACK)
        j = s.cell + pack * PACK - rise
        in_cell = j % s.cell
        at = shift + (j // s.cell + above - 1) * line + col * s.cell + in_cell
        for k in range(PACK):
            source = (at + k + np.where(in_cell + k < s.cell, 0, line - s.cell))[ok]
            assert source.min(initial=0) >= 0
            assert source.max(initial=0) < len(shared)
            exists = ((first + k >= 0) & (first + k < run))[ok]
            to = (matrix + col * run + first)[ok]
            assert ((to + y_offset) % PACK == 0).all()
            y[(to + k)[exists]] = shared[source[exists]]
            np.add.at(written, (to + k)[exists], 1)
    return y, written


@pytest.mark.parametrize(
    "shape", [(2, 197, 12, 49), (3, 32, 5, 16), (2, 16, 3, 64), (1, 5, 2, 17), (2, 33, 7, 50), (1, 64, 1, 31)], ids=str
)
@pytest.mark.parametrize(
    ("x_offset", "y_offset"), [(0, 0), (1, 3), *(rare(*one) for one in ((5, 0), (0, 7), (3, 16), (8, 8)))]
)
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
