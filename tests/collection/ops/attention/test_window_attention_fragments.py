"""Lanes and tiles of attention over windows, with the names of attention_fragments.cuh.

An address is a row and a column here.
"""

from __future__ import annotations

import itertools

import numpy as np

from tests.one_test import one_test

LANE = np.arange(32)


def rows_of(matrix, first, row, chunk):
    """What ldmatrix finds: eight elements of a row for each lane; rows past the last token are the last one's."""
    at = np.minimum(first + row, len(matrix) - 1)
    return matrix[at[:, None], 8 * chunk[:, None] + np.arange(8)]


def load_matrices(rows, transposed=False):
    """(4 registers, 32 lanes, 2 halves)."""
    parts = rows.reshape(4, 8, 8)
    parts = parts.transpose(0, 2, 1) if transposed else parts
    return np.stack([np.stack([part[LANE // 4, 2 * (LANE % 4) + e] for e in (0, 1)], axis=1) for part in parts])


def load_queries(q, tile, step):
    return load_matrices(rows_of(q, 16 * tile, LANE % 16, 2 * step + LANE // 16))


def load_keys(k, pair, step):
    return load_matrices(rows_of(k, 16 * pair, LANE // 16 * 8 + LANE % 8, 2 * step + LANE // 8 % 2))


def load_values(v, step, pair):
    found = load_matrices(rows_of(v, 16 * step, LANE % 16, 2 * pair + LANE // 16), transposed=True)
    for part, e in itertools.product(range(2), range(2)):
        absent = 16 * step + 8 * part + 2 * (LANE % 4) + e >= len(v)
        found[part, absent, e] = found[part + 2, absent, e] = 0
    return found


def multiply_add(d, a, b):
    """D += A B as mma.cuh draws them. The number of registers says whether A has 16 columns, or 8."""
    row, column = LANE // 4, 2 * (LANE % 4)
    left, right = np.zeros((16, 8 * len(b))), np.zeros((8 * len(b), 8))
    for e, register in itertools.product(range(2), range(len(a))):
        left[row + 8 * (register % 2), column + e + 8 * (register // 2)] = a[register][:, e]
    for e, register in itertools.product(range(2), range(len(b))):
        right[column + e + 8 * register, row] = b[register][:, e]
    product = left @ right
    for i in range(4):
        d[:, i] += product[row + i // 2 * 8, column + i % 2]


def attend_tile(q, k, v, tile):
    """The tile's rows of the output, from weights that are the scores themselves."""
    tokens = len(q)
    q, k, v = (np.pad(matrix, ((0, 0), (0, -matrix.shape[1] % 16))) for matrix in (q, k, v))
    size = q.shape[1]
    tiles, steps = -(-tokens // 8), size // 16
    scores, out = np.zeros((tiles + 1, 32, 4)), np.zeros((2 * steps, 32, 4))
    for step, pair in itertools.product(range(steps), range(-(-tokens // 16))):
        a, b = load_queries(q, tile, step), load_keys(k, pair, step)
        multiply_add(scores[2 * pair], a, b[:2])
        multiply_add(scores[2 * pair + 1], a, b[2:])
    for column, i in itertools.product(range(tiles), range(4)):
        scores[column, 8 * column + 2 * (LANE % 4) + i % 2 >= tokens, i] = 0  # the table's -infinity
    for pair, columns in itertools.product(range(-(-tokens // 16)), range(steps)):
        left, right, b = scores[2 * pair], scores[2 * pair + 1], load_values(v, pair, columns)
        a = [left[:, :2], left[:, 2:], right[:, :2], right[:, 2:]]
        half = 1 if 2 * pair + 1 == tiles else 2
        multiply_add(out[2 * columns], a[: 2 * half], b[:half])
        multiply_add(out[2 * columns + 1], a[: 2 * half], b[2 : 2 + half])
    rows = np.zeros((16, size))
    for column, i in itertools.product(range(2 * steps), range(4)):
        rows[LANE // 4 + i // 2 * 8, 8 * column + 2 * (LANE % 4) + i % 2] = out[column, :, i]
    return rows[: tokens - 16 * tile]


@one_test(("tokens", "size"), [(49, 32), (64, 32), (144, 32), (1, 16), (9, 48), (17, 64), (40, 16)])
def test_lanes_have_what_the_products_need(tokens, size):
    generator = np.random.default_rng(tokens)
    q, k, v = generator.integers(-3, 4, (3, tokens, size)).astype(float)
    got = np.concatenate([attend_tile(q, k, v, tile) for tile in range(-(-tokens // 16))])
    assert np.array_equal(got, q @ k.T @ v)


def chunk_at(row, chunk, chunks):
    """chunk_at() of attention_fragments.cuh, in chunks."""
    other = row % 8 if chunks % 8 == 0 else row // 2 % 4 if chunks % 4 == 0 else row // 4 % 2
    return row * chunks + (chunk ^ other)


@one_test("size", [16, 32, 48, 64])
def test_eight_rows_of_a_chunk_lie_in_all_banks(size):
    chunks = size // 8
    places = [chunk_at(row, chunk, chunks) for row in range(64) for chunk in range(chunks)]
    assert sorted(places) == list(range(64 * chunks))
    for first, chunk in itertools.product(range(0, 64, 8), range(chunks)):
        assert {chunk_at(row, chunk, chunks) % 8 for row in range(first, first + 8)} == set(range(8))


@one_test("size", [2, 10, 16, 24, 30, 32, 40, 48, 62, 64])
def test_a_team_fetches_each_access_of_a_matrix_once(size):
    """fetch_matrix() of attention_items.cuh: a thread's accesses at fixed distances, where their order repeats."""
    width = -(-size // 16) * 16
    chunks, access = width // 8, 16 if size % 8 == 0 else 4
    accesses = size * 2 // access
    lanes = chunks if size == width else 1 << (accesses - 1).bit_length()

    def access_at(row, number):
        return chunk_at(row, number * access // 16, chunks) * 16 + number * access % 16

    for tokens, team in itertools.product((1, 7, 8, 9, 33, 49, 64, 100, 144, 256), range(1, 17)):
        threads, found = 32 * team, {}
        at_a_time = threads // lanes
        turns = 8 // at_a_time if at_a_time < 8 else 1
        if threads % lanes or at_a_time * turns % 8:
            continue
        for thread, begin in itertools.product(range(threads), range(0, tokens, turns * at_a_time)):
            row, number = divmod(thread, lanes)
            for turn in range(turns if number < accesses else 0):
                first = begin + turn * at_a_time
                if first + at_a_time <= tokens or (first < tokens and row < tokens - first):
                    place = access_at(turn * at_a_time + row, number) + begin * width * 2
                    assert place not in found
                    found[place] = row + first, number
        wanted = {access_at(row, number): (row, number) for row in range(tokens) for number in range(accesses)}
        assert found == wanted
