"""Matrices of few rows or columns: what narrow.cuh would read and write, in numpy, against a plain transpose."""

from __future__ import annotations

import numpy as np
import pytest

from harness import cuda
from harness.collection.ops.layouts._pack_plan import Narrow
from harness.collection.ops.layouts._transpose_plan import Matrices
from harness.collection.ops.layouts._transpose_tuning import ruled, tiles
from tests.one_test import one_test


def transposed(plan, x):
    """y as the kernel would write it: whole packs, by warps."""
    narrow, pack, row = plan.narrow, 16 // plan.shape.itemsize, plan.packs
    x = x.reshape(-1, pack)
    y = np.full_like(x, -1)
    thread = np.arange(plan.threads)
    matrix = thread // row
    k = np.arange(narrow)[:, None]
    long = matrix * row * narrow + thread % row + k * row
    e = np.arange(narrow * pack)
    source = e % pack * narrow + e // pack if plan.to_rows else e % narrow * pack + e // narrow
    for first in range(0, plan.threads, 32):
        lanes = np.arange(first, min(first + 32, plan.threads))
        # Lane i has packs i, i + 32, ... of the warp's on the mixed side; through shared memory it has the i-th NARROW.
        mixed = first * narrow + np.arange(len(lanes) * narrow).reshape(len(lanes), narrow)
        mine = x[mixed] if plan.to_rows else x[long[:, lanes].T]
        moved = mine.reshape(len(lanes), -1)[:, source].reshape(len(lanes), narrow, pack)
        target = long[:, lanes].T if plan.to_rows else mixed
        assert (y[target] == -1).all()
        y[target] = moved
    return y.reshape(-1)


@one_test("shape", [(1, 1000, 3), (1, 3, 1000), (5, 64, 7), (5, 5, 64), (3, 3, 8), (40, 16, 3)], ids=str)
@one_test("itemsize", [2, 4])
def test_every_element_moves_once(shape, itemsize):
    plan = Narrow.of(Matrices(*shape, itemsize))
    assert plan
    x = np.arange(plan.shape.elements)
    assert (transposed(plan, x) == x.reshape(shape).transpose(0, 2, 1).reshape(-1)).all()


def test_other_matrices_have_other_kernels():
    for batch, rows, cols, itemsize in [(1, 1000, 4, 2), (1, 1001, 3, 4), (1, 1002, 3, 4), (1, 1004, 3, 2)]:
        assert Narrow.of(Matrices(batch, rows, cols, itemsize)) is None
    assert Narrow.of(Matrices(1, 1000, 3, 2, 2)) is None


@pytest.mark.parametrize(("element", "to_rows"), [("unsigned", 0), ("unsigned", 1), ("unsigned short", 1)])
def test_all_loads_of_a_thread_are_under_way_before_a_store(ptx, element, to_rows):
    macros = {"ELEMENT": element, "THREADS": 256, "NARROW": 3, "TO_ROWS": to_rows}
    text = ptx("transpose.cu", "transpose_narrow", macros)
    assert (text.count("ld.global.nc.v4"), text.count("st.global.v4")) == (3, 3)
    assert text.rindex("ld.global.nc.v4") < text.index("st.global.v4")


def test_small_matrices_have_small_blocks_or_words(monkeypatch):
    """Large blocks would leave most of 132 multiprocessors without work."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)

    def rule(rows, cols, itemsize):
        return ruled(Matrices(1, rows, cols, itemsize), 132)

    assert [rule(7, 4096, 2), rule(4096, 7, 2), rule(7, 4096, 4), rule(4096, 7, 4)] == ["words"] * 2 + ["narrow32"] * 2
    assert [rule(7, 2**16, 2), rule(7, 2**16, 4)] == ["narrow32", "narrow64"]
    assert [rule(7, 2**20, 2), rule(2**20, 3, 4)] == ["narrow256"] * 2
    assert all(f"narrow{block}" in {*tiles(Matrices(1, 7, 4096, 2))} for block in (32, 64, 128, 256))
