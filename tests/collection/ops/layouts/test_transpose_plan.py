"""Tiles of transposes: what the kernels would read and write, in numpy, against a plain transpose."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.collection.ops.elementwise import WORD_TYPE
from harness.collection.ops.layouts._transpose_plan import THREADS, WORD, Matrices, RegisterBlocks, WordTiles
from harness.cuda import fast_divisor
from tests.one_test import one_test
from tests.rare import rare

# Batch, rows, columns, and elements of a cell.
SHAPES = [
    (1, 2, 2, 1),  # one tile
    (1, 64, 64, 1),  # whole tiles
    (1, 127, 63, 1),
    (1, 300, 260, 1),  # even, and no multiple of a tile
    (1, 257, 131, 1),  # odd
    (1, 130, 515, 1),
    (2, 1000, 3, 1),  # narrow, both ways
    (2, 3, 1001, 1),
    (1, 2, 5000, 1),
    (1, 4999, 4, 1),
    (3, 50, 49, 1),  # small images
    (3, 49, 512, 1),
    (2, 200, 196, 1),
    (300, 7, 9, 1),  # several matrices a block
    (301, 8, 4, 1),
    (5, 33, 100, 1),
    (2, 40, 12, 49),  # cells
    (2, 197, 3, 49),
    (3, 100, 5, 3),
    (1, 9, 7, 300),
    (2, 33, 12, 4),
]
MULTIPROCESSORS = [1, 132]


def plans(shape, multiprocessors):
    batch, rows, cols, cell = shape
    for itemsize, aligned in [(4, True), (2, True), (2, False)]:
        matrices = Matrices(batch, rows, cols, itemsize, cell)
        plan = WordTiles.of(matrices, multiprocessors, aligned=aligned)
        assert plan or aligned
        if plan:
            yield plan


def words(plan, side, first, runs, length, pitch, offset):
    """What `for_words` of word_tile.cuh visits on one side of a tile.

    first: the tile's first element in the tensor, which begins `offset` elements past a word. Returns arrays over k and
    thread: the run, its first element in the tensor, the word's first element in the run, and whether each half exists.
    """
    k, thread = np.meshgrid(np.arange(side.items), np.arange(THREADS), indexing="ij")
    if side.words <= THREADS // 2:
        slots = 1 << (side.words - 1).bit_length()
        run, word = k * (THREADS // slots) + thread // slots, thread % slots
        assert plan.shape.itemsize == WORD or THREADS // slots % 2 == 0, "runs of a thread must be shifted alike"
    else:
        pieces = -(-side.words // THREADS)
        run, word = k // pieces, k % pieces * THREADS + thread
    at = first + run * pitch
    shift = (offset + at) % 2 if plan.shifted else 0
    j = word * side.per_word - shift
    low = (run < runs) & (j >= 0) & (j < length)
    high = (run < runs) & (j + 1 >= 0) & (j + 1 < length) & (side.per_word == 2)
    return run, at, j, low, high


def place(plan, run, j, *, of_x):
    """The place in shared memory: place_in_x and place_in_y of word_tile.cuh."""
    cell, as_y = plan.shape.cell, plan.flat_y and not plan.flat_x
    x_run, y_run = plan.cols * cell, plan.rows * cell
    line = (y_run if as_y else x_run) | 1

    def in_lines(e, length):
        return e // length * line + e % length

    if of_x:
        if plan.flat_x:
            return in_lines(j, x_run)
        return in_lines(j, cell) + run * cell if as_y else j + run * line
    if as_y:
        return in_lines(j, y_run) + run * line
    matrix = 0
    if plan.flat_y:
        run, j = j // y_run, j % y_run
        matrix, run = run // plan.cols, run % plan.cols
    return in_lines(j, cell) + run * cell + matrix * plan.rows * line


def place_of_tile(tile, plan):
    """place_of of order.cuh, with its divisions as they are done there."""

    def divide(n, divisor):
        multiplier, shift = fast_divisor(divisor, 32)
        return (n * multiplier.value // 2**32 + n) >> shift.value

    matrix = divide(tile, plan.down * plan.across)
    of_matrix = tile - matrix * plan.down * plan.across
    band = divide(of_matrix, plan.band * plan.down)
    of_band, first = of_matrix - band * plan.band * plan.down, band * plan.band
    width = min(plan.band, plan.across - first)
    return matrix, of_band // width, first + of_band % width


def conflicts(addresses, active, itemsize):
    """The most different words of one bank that a warp accesses at once."""
    most = 1
    for line, mask in zip(addresses.reshape(-1, 32), active.reshape(-1, 32), strict=True):
        touched = np.unique(line[mask] * itemsize // 4)
        most = max(most, np.bincount(touched % 32).max(initial=1))
    return most


def tiles(plan):
    """For each tile: x's and y's first element, runs and length of a run on both sides, and whether it is full."""
    s = plan.shape
    for number in range(plan.grid):
        group, down, across = place_of_tile(number, plan)
        first, row, col = group * plan.matrices, down * plan.rows, across * plan.cols
        matrices, rows, cols = (
            min(plan.matrices, s.batch - first),
            min(plan.rows, s.rows - row),
            min(plan.cols, s.cols - col),
        )
        every, offset = matrices * rows * cols * s.cell, first * s.matrix
        x = offset + (row * s.cols + col) * s.cell, *((1, every) if plan.flat_x else (rows, cols * s.cell))
        y = offset + (col * s.rows + row) * s.cell, *((1, every) if plan.flat_y else (cols, rows * s.cell))
        yield x, y, (matrices, rows, cols) == (plan.matrices, plan.rows, plan.cols)


def transposed(plan, x, x_offset, y_offset):
    """y as the kernel would write it, and how often each of its elements is written."""
    s = plan.shape
    y, written = np.full(s.elements, -1), np.zeros(s.elements, int)
    for (first_x, runs_x, length_x), (first_y, runs_y, length_y), full in tiles(plan):
        shared = np.full(plan.shared // s.itemsize, -1)
        run, at, j, low, high = words(plan, plan.x, first_x, runs_x, length_x, s.cols * s.cell, x_offset)
        end = first_x + (runs_x - 1) * s.cols * s.cell + length_x
        if full and (not plan.shifted or (first_x > 0 and end < s.elements)):
            # Words are read as a whole.
            begin, size = (at + j)[low | high], plan.x.per_word
            assert begin.min() >= 0
            assert begin.max() + size <= s.elements
        for half, exists in ((0, low), (1, high)):
            target = place(plan, run, j + half, of_x=True)[exists]
            assert (shared[target] == -1).all(), "two elements have one place"
            shared[target] = x[(at + j + half)[exists]]
        run, at, j, low, high = words(plan, plan.y, first_y, runs_y, length_y, s.rows * s.cell, y_offset)
        if s.itemsize < WORD:
            assert ((y_offset + at + j)[low & high] % 2 == 0).all(), "a word must be aligned"
            assert plan.shifted or (low == high).all()
        for half, exists in ((0, low), (1, high)):
            target = (at + j + half)[exists]
            y[target] = shared[place(plan, run, j + half, of_x=False)[exists]]
            np.add.at(written, target, 1)
    return y, written


@pytest.mark.parametrize("shape", [rare(shape) if math.prod(shape) > 20_000 else shape for shape in SHAPES], ids=str)
@pytest.mark.parametrize("multiprocessors", [rare(1), 132])
def test_every_element_is_moved_once_and_to_its_place(shape, multiprocessors):
    batch, rows, cols, cell = shape
    for plan in plans(shape, multiprocessors):
        x = np.arange(plan.shape.elements)
        wanted = x.reshape(batch, rows, cols, cell).transpose(0, 2, 1, 3).reshape(-1)
        for x_offset, y_offset in [(0, 0), (1, 0), (0, 1)] if plan.shifted else [(0, 0)]:
            y, written = transposed(plan, x, x_offset, y_offset)
            assert (written == 1).all(), plan
            assert (y == wanted).all(), plan


@pytest.mark.slow  # the test above moves the elements through them
@one_test("shape", SHAPES, ids=str)
def test_registers_and_shared_memory_hold_a_tile(shape):
    for multiprocessors in MULTIPROCESSORS:
        for plan in plans(shape, multiprocessors):
            assert max(plan.x.items, plan.y.items) <= 16
            assert plan.shared <= 32 * 1024


@pytest.mark.slow  # banks cost time alone
@one_test(
    ("shape", "most"),
    [
        ((1, 8191, 8193, 1), (1, 1)),
        ((1, 4096, 4096, 1), (1, 1)),
        ((1, 50257, 770, 1), (1, 1)),
        ((1, 100_000, 3, 1), (1, 1)),
        ((1, 3, 100_000, 1), (1, 1)),
        ((64, 512, 49, 1), (2, 2)),
        ((64, 49, 512, 1), (2, 2)),
        ((64, 196, 256, 1), (2, 2)),
    ],
    ids=str,
)
def test_banks_are_free_of_conflicts(shape, most):
    """A flat side may have two: where its elements aren't at consecutive places, a warp's reach over 33 banks."""
    for plan in plans(shape, 132):
        s = plan.shape
        (first_x, *of_x), (first_y, *of_y), full = next(iter(tiles(plan)))
        assert full
        for side, first, part, pitch, of, limit in [
            (plan.x, first_x, of_x, s.cols, True, most[0]),
            (plan.y, first_y, of_y, s.rows, False, most[1]),
        ]:
            run, _, j, low, high = words(plan, side, first, *part, pitch, 0)
            for half, exists in ((0, low), (1, high)):
                found = conflicts(place(plan, run, j + half, of_x=of), exists, s.itemsize)
                assert found <= limit, (plan, of)


@one_test(
    ("shape", "share"),
    [
        ((1, 8192, 8191), 0.95),
        ((1, 8191, 8193), 0.95),
        ((1, 30_000_000, 3), 0.95),
        ((1, 3, 30_000_000), 0.95),
        ((256, 2048, 49), 0.85),
        ((256, 49, 2048), 0.85),
        ((256, 512, 49), 0.70),
        ((256, 768, 197), 0.85),
        ((1, 1000, 50257), 0.90),
        ((100_000, 7, 9), 0.95),
    ],
    ids=str,
)
def test_few_threads_have_nothing_to_do(shape, share):
    for plan in plans((*shape, 1), 132):
        room = plan.grid * THREADS * max(plan.x.items, plan.y.items) * plan.x.per_word
        assert plan.shape.elements >= share * room, plan


def of_registers(plan, x):
    """y as register_blocks.cuh would write it, and how often each of its elements is written."""
    s, side = plan.shape, 4
    y, written = np.full(s.elements, -1), np.zeros(s.elements, int)
    warp, lane = np.divmod(np.arange(plan.threads), 32)
    warps_down = plan.threads // 32 // plan.warps_across
    at = np.arange(side)
    for tile_across, tile_down, matrix in np.ndindex(plan.grid):
        row = ((tile_down * warps_down + warp // plan.warps_across) * 4 + lane // 8) * side
        col = ((tile_across * plan.warps_across + warp % plan.warps_across) * 8 + lane % 8) * side
        exists = (row < s.rows) & (col < s.cols)
        assert ((row + side <= s.rows) & (col + side <= s.cols))[exists].all(), "blocks must be whole"
        row, col = row[exists, None, None], col[exists, None, None]
        block = x[matrix * s.matrix + (row + at[:, None]) * s.cols + col + at]
        to = matrix * s.matrix + (col + at[:, None]) * s.rows + row + at
        y[to] = block.transpose(0, 2, 1)
        np.add.at(written, to, 1)
    return y, written


@pytest.mark.parametrize(
    ("itemsize", "shape", "warps_across"),
    [
        rare(4, (1, 1024, 2048), 2),
        rare(4, (1, 1000, 1000), 2),
        (4, (4, 256, 784), 1),
        (4, (3, 48, 32), 1),
        (4, (1, 16, 4096), 4),
        rare(2, (1, 1024, 1024), 2),
        (2, (6, 640, 528), 1),
        (2, (3, 48, 80), 1),
        (2, (1, 16, 128), 4),
    ],
    ids=str,
)
def test_register_blocks_move_every_element_once_and_to_its_place(itemsize, shape, warps_across):
    plan = RegisterBlocks.of(Matrices(*shape, itemsize))
    assert plan
    assert plan.warps_across == warps_across
    assert plan.rows * plan.cols == plan.threads * 16
    x = np.arange(plan.shape.elements)
    y, written = of_registers(plan, x)
    assert (written == 1).all()
    assert (y == x.reshape(shape).transpose(0, 2, 1).reshape(-1)).all()


def test_register_blocks_are_for_few_elements_in_whole_sectors():
    for rows, cols, itemsize in [(2048, 1024, 4), (2048, 2048, 4), (2048, 1024, 2), (1024, 1008, 2), (1024, 1016, 4)]:
        assert RegisterBlocks.of(Matrices(1, rows, cols, itemsize))
    for rows, cols, itemsize in [
        (1024, 1022, 4),
        (1023, 1024, 4),
        (8, 1024, 4),
        (1028, 1024, 4),
        (2048, 2064, 4),
        (1024, 1016, 2),
        (1000, 1024, 2),
        (1024, 16, 2),
        (2048, 1040, 2),
    ]:
        assert RegisterBlocks.of(Matrices(1, rows, cols, itemsize)) is None
    assert RegisterBlocks.of(Matrices(1, 1024, 1024, 4, 2)) is None


def test_a_small_matrix_has_a_tile_for_each_multiprocessor():
    for itemsize in (2, 4):
        plan = RegisterBlocks.of(Matrices(1, 1024, 1024, itemsize))
        assert plan
        assert math.prod(plan.grid) >= 2 * 132
        plan = WordTiles.of(Matrices(1, 1023, 1021, itemsize), 132, aligned=itemsize == WORD)
        assert plan.grid >= 2 * 132


def test_a_pair_of_halves_is_as_good_as_a_float():
    assert Matrices(2, 3, 5, 2, 6).in_words() == Matrices(2, 3, 5, 4, 3)
    for same in (Matrices(2, 3, 5, 2, 3), Matrices(2, 3, 5, 4, 3)):
        assert same.in_words() == same
    assert math.prod((2, 3, 5, 6)) == Matrices(2, 3, 5, 2, 6).elements


@pytest.mark.parametrize(
    ("shape", "stream"),
    [((32, 1280, 256, 2), 1), ((96, 1024, 512, 2), 1), ((97, 1024, 512, 2), 0), ((32, 1280, 256, 4), 0)],
)
def test_lines_of_halves_are_given_up_first_unless_the_batch_is_large(ptx, shape, stream):
    macros = WordTiles.of(Matrices(*shape), 132, aligned=True).macros
    assert macros["STREAM"] == stream
    text = ptx("nchw_to_nhwc.cu", "nchw_to_nhwc_word_tiles", {"ELEMENT": WORD_TYPE[shape[3]], **macros})
    assert [f"{access}.global.cs" in text for access in ("ld", "st")] == [bool(stream)] * 2
