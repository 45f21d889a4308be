"""What lanes have of matrices in the backward of attention over windows: twin of window_attention_grad_strips.cuh."""

from __future__ import annotations

import numpy as np
import pytest

from tests.one_test import one_test


def lanes():
    return np.arange(32)


def load_matrices(memory, rows, columns, transposed=False):
    """What 32 lanes get from a matrix: (lane, register, two). rows, columns: the row of 8 that each lane points at."""
    lane = lanes()
    found = np.empty((32, 4, 2))
    for register in range(4):
        for two in range(2):
            row, column = lane // 4, 2 * (lane % 4) + two
            if transposed:
                row, column = column, row
            pointer = 8 * register + row
            found[:, register, two] = memory[rows[pointer], columns[pointer] + column]
    return found


def multiply_add(d, a, b):
    """D (lane, 4) of 16 x 8 plus the product of A (lane, 4, two) and B (lane, 2, two), as mma.cuh draws them."""
    lane = lanes()
    left, right = np.empty((16, 16)), np.empty((16, 8))
    for register in range(4):
        for two in range(2):
            left[lane // 4 + register % 2 * 8, 2 * (lane % 4) + two + register // 2 * 8] = a[:, register, two]
    for register in range(2):
        for two in range(2):
            right[2 * (lane % 4) + two + register * 8, lane // 4] = b[:, register, two]
    sums = left @ right
    for e in range(4):
        d[:, e] += sums[lane // 4 + e // 2 * 8, 2 * (lane % 4) + e % 2]


class Lanes:
    """The kernels' steps for one window, with the addresses that they compute, in float64."""

    def __init__(self, tokens, dim):
        self.strips, self.tiles, self.dim = -(-tokens // 16), -(-tokens // 8), dim
        self.row, self.column = lanes() % 16, lanes() // 16 * 8  # of place_in_16

    def strip_by_rows(self, warp, left, right):
        a = [load_matrices(left, warp * 16 + self.row, self.column + 16 * k) for k in range(self.dim // 16)]
        sums = np.zeros((self.tiles, 32, 4))
        for tile in range(self.tiles):
            for k in range(0, self.dim // 16, 2):
                b = load_matrices(right, tile * 8 + lanes() % 8, lanes() // 8 * 8 + 16 * k)
                multiply_add(sums[tile], a[k], b[:, :2])
                multiply_add(sums[tile], a[k + 1], b[:, 2:])
        return sums

    def fragment(self, strip, s):
        """Tiles 2 s and 2 s + 1 of a strip as A; a tile that isn't there is zeros."""
        tiles = [strip[t] if t < self.tiles else np.zeros((32, 4)) for t in (2 * s, 2 * s + 1)]
        return np.stack([tiles[m // 2][:, m % 2 * 2 : m % 2 * 2 + 2] for m in range(4)], axis=1)

    def share(self, square, warp, strip):
        """Stores by stmatrix, which is load_matrices the other way round."""
        lane = lanes()
        for s in range(self.strips):
            words = self.fragment(strip, s)
            for matrix in range(4):
                pointer = 8 * matrix + lane // 4
                for two in range(2):
                    row, column = warp * 16 + self.row[pointer], self.column[pointer] + 16 * s
                    square[row, column + 2 * (lane % 4) + two] = words[:, matrix, two]

    def add_products(self, sums, a, right, s):
        for n in range(0, self.dim // 8, 2):
            b = load_matrices(right, 16 * s + self.row, self.column + 8 * n, transposed=True)
            multiply_add(sums[n], a, b[:, :2])
            multiply_add(sums[n + 1], a, b[:, 2:])

    def product(self, a_of_step, right):
        """16 rows by all columns of `right`. a_of_step(s): A of a step of 16 rows of it."""
        sums = np.zeros((self.dim // 8, 32, 4))
        for s in range(self.strips):
            self.add_products(sums, a_of_step(s), right, s)
        return np.concatenate([matrix_of(tile) for tile in sums], axis=1)

    def columns_of(self, square, strip):
        """A of 16 columns of a square, as rows."""
        row, column = lanes() % 8 + lanes() // 16 * 8, 16 * strip + lanes() // 8 % 2 * 8
        return lambda s: load_matrices(square, row + 16 * s, column, transposed=True)


def matrix_of(tile):
    """16 x 8 elements from what the lanes have."""
    lane, found = lanes(), np.empty((16, 8))
    for e in range(4):
        found[lane // 4 + e // 2 * 8, 2 * (lane % 4) + e % 2] = tile[:, e]
    return found


@pytest.mark.slow  # the next test has each chunk
@one_test(("tokens", "dim"), [(49, 32), (64, 32), (17, 64), (7, 32)])
def test_fragments_give_the_five_products(tokens, dim):
    """S and dP stand in for P and dS here: any two squares would do."""
    generator, work = np.random.default_rng(1), Lanes(tokens, dim)
    rows = 16 * work.strips
    tensors = np.zeros((4, rows, dim + 8))  # padded, as in shared memory
    tensors[:, :tokens, :dim] = generator.integers(-4, 5, (4, tokens, dim))
    dout, q, k, v = tensors
    wanted_s, wanted_dp = q[:, :dim] @ k[:, :dim].T, dout[:, :dim] @ v[:, :dim].T
    squares = np.full((2, rows, 16 * work.strips + 8), np.nan)
    for warp in range(work.strips):
        own = slice(16 * warp, 16 * warp + 16)
        s, dp = work.strip_by_rows(warp, q, k), work.strip_by_rows(warp, dout, v)
        for found, wanted in ((s, wanted_s), (dp, wanted_dp)):
            matrix = np.concatenate([matrix_of(tile) for tile in found], axis=1)
            assert np.array_equal(matrix, wanted[own, : 8 * work.tiles])
        dq = work.product(lambda step, dp=dp: work.fragment(dp, step), k)
        assert np.array_equal(dq, wanted_dp[own] @ k[:, :dim])
        work.share(squares[0], warp, s)
        work.share(squares[1], warp, dp)
    for strip in range(work.strips):
        own = slice(16 * strip, 16 * strip + 16)
        assert np.array_equal(work.product(work.columns_of(squares[0], strip), dout), wanted_s.T[own] @ dout[:, :dim])
        assert np.array_equal(work.product(work.columns_of(squares[1], strip), q), wanted_dp.T[own] @ q[:, :dim])


@one_test(("windows", "masks", "parts"), [(8192, 64, 99), (12, 4, 5), (7, 1, 7), (6, 6, 1)])
def test_every_window_is_worked_on_once_with_its_mask(windows, masks, parts):
    """Twin of Walk in window_attention_grad.cu."""
    turns, seen, loads = windows // masks, [], 0
    for part in range(parts):
        first, last = windows * part // parts, windows * (part + 1) // parts
        mask, turn, loaded = first // turns, first % turns, None
        for _ in range(first, last):
            assert (turn * masks + mask) % masks == mask
            loads, loaded = loads + (mask != loaded), mask
            seen.append(turn * masks + mask)
            turn, mask = (0, mask + 1) if turn + 1 == turns else (turn + 1, mask)
    assert sorted(seen) == list(range(windows))
    assert loads < parts + masks


def row_of(i, chunks):
    """row_of() of window_attention_grad_stage.cuh."""
    row = i // chunks
    return row // 8 * 8 + row % 8 // 2 + row % 2 * 4 if chunks == 4 else row


@pytest.mark.parametrize("dim", [32, 64])
def test_each_chunk_is_copied_and_written_once(dim):
    """start_window() and write_strip(): a thread's chunks lie at a fixed distance from its first one."""
    chunks = dim // 8
    for tokens in range(1, 145):
        strips = -(-tokens // 16)
        step = strips * 32 // chunks
        copied = [
            (row_of(thread, chunks) + first, thread % chunks)
            for thread in range(32 * strips)
            for first in range(0, tokens, step)
            if first + step <= tokens or row_of(thread, chunks) < tokens - first
        ]
        wanted = [(row, chunk) for row in range(tokens) for chunk in range(chunks)]
        assert sorted(copied) == wanted
        written = [
            (16 * strip + row_of(lane, chunks) + first, lane % chunks)
            for strip in range(strips)
            for lane in range(32)
            for first in range(0, 16, 32 // chunks)
        ]
        assert sorted(pair for pair in written if pair[0] < tokens) == wanted


@one_test(("tokens", "heads"), [(49, 4), (7, 3), (64, 1), (144, 2)])
def test_the_total_puts_each_element_of_dbias_to_its_place(tokens, heads):
    """window_attention_grad_total against what Kept and first_row(), first_column() say of a thread's elements."""
    strips, tiles = -(-tokens // 16), -(-tokens // 8)
    threads, fragments = 32 * strips, 32 * strips * tiles
    found = {}
    for block in range(heads * fragments // 32):
        for thread in range(128):
            head, place = divmod(block * 32 + thread // 4, fragments)
            tile, owner = divmod(place, threads)
            row = owner // 32 * 16 + owner % 32 // 4 + thread % 4 // 2 * 8
            column = tile * 8 + owner % 4 * 2 + thread % 2
            if row < tokens and column < tokens:
                assert (head, row, column) not in found
                found[head, row, column] = head * fragments + tile * threads + owner, thread % 4
    assert len(found) == heads * tokens * tokens
    for (head, row, column), (group, e) in list(found.items())[:: tokens // 7]:
        thread = row // 16 * 32 + row % 8 * 4 + column % 8 // 2
        assert group == head * fragments + column // 8 * threads + thread
        assert e == row % 16 // 8 * 2 + column % 2


@one_test(("size", "dim"), [(2, 32), (30, 32), (34, 64), (62, 64)])
def test_each_word_is_copied_and_written_once(size, dim):
    """copy_words() and write_words() of window_attention_grad_stage.cuh: (row, word)."""
    lanes = dim // 2
    for tokens in (1, 16, 17, 49, 64, 144):
        threads = -(-tokens // 16) * 32
        wanted = [(row, word) for row in range(tokens) for word in range(size // 2)]
        copied = [
            (row, thread % lanes)
            for thread in range(threads)
            for row in range(thread // lanes, tokens, threads // lanes)
            if thread % lanes * 2 < size
        ]
        written = [
            (16 * strip + row, lane % lanes)
            for strip in range(threads // 32)
            for lane in range(32)
            for row in range(lane // lanes, 16, 32 // lanes)
            if 16 * strip + row < tokens and lane % lanes * 2 < size
        ]
        assert sorted(copied) == sorted(written) == wanted
