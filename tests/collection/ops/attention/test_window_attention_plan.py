"""What the ops of attention over windows share: plans, the order of tiles and lanes, and Swin's mask."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.chip import H200, Chip
from harness.cuda import fast_divisor
from harness.expressions import ExpressionError
from harness.paths import data
from tests.one_test import one_test
from tests.rare import rare

# W, H, T, D, G.
PLANNED = [
    (8192, 4, 49, 32, 64),
    (8192, 3, 49, 32, 64),
    (6272, 4, 64, 32, 64),
    (2048, 4, 144, 32, 64),
    (100, 7, 49, 32, 0),
    (8192, 4, 49, 32, 0),
    (10880, 3, 49, 32, 64),
    (1360, 24, 49, 32, 0),
    (601, 4, 49, 32, 0),
    (600, 4, 49, 32, 600),
    (4, 1, 49, 32, 4),
    (90, 6, 196, 32, 9),
    (30, 5, 64, 64, 3),
    (33, 4, 256, 64, 0),
    (1, 1, 1, 16, 1),
    (0, 4, 49, 32, 2),
]
CHIPS = [H200, Chip(108, clusters=False, shared=163 * 1024), Chip(1, clusters=False, shared=99 * 1024)]


def planned(shape, packed=False, chip=H200):
    *sizes, masks = shape
    made = shared.AttentionSizes(*sizes, bias=True, masks=masks, packed=packed)
    return made, shared.TilePlan.of(made, chip)


# ---- Plans.


@pytest.mark.slow  # test_kernels.py has that no kernel takes more than there is
@one_test("chip", CHIPS, ids=["H200", "A100", "small"])
@one_test("packed", [False, True])
def test_a_plan_fits_into_a_multiprocessor(chip, packed):
    for tokens, size, heads in itertools.product(range(1, 257), (16, 32, 48, 64), (1, 2, 3, 4, 12)):
        _, plan = planned((512, heads, tokens, size, 16), packed, chip)
        if plan is None:
            assert 6 * tokens * size * 2 > chip.shared
            continue
        assert plan.shared <= chip.shared
        assert 32 <= plan.threads <= 640
        assert plan.threads == plan.team * plan.teams * 32
        assert plan.teams < 16 or plan.team == 1  # barriers of a block
        assert heads % max(1, plan.tables) == 0
        assert plan.grid <= chip.multiprocessors


def test_plans_of_swin():
    _, plan = planned((8192, 4, 49, 32, 64))
    assert (plan.teams, plan.tables, plan.grid, plan.segment) == (16, 2, 128, 256)
    _, plan = planned((2048, 4, 144, 32, 64))
    assert (plan.team, plan.teams, plan.grid) == (9, 2, 128)


def test_as_many_warps_have_packed_windows():
    for shape, warps, tables in (((8192, 4, 49, 32, 64), 16, 2), ((6272, 4, 64, 32, 64), 12, 2)):
        _, plan = planned(shape, packed=True)
        assert (plan.teams, plan.tables, plan.grid) == (warps, tables, 128)
    _, plan = planned((10880, 3, 49, 32, 64), packed=True)
    assert (plan.teams, plan.tables, plan.ways) == (15, 3, 2)
    _, plan = planned((50, 4, 49, 16, 2), packed=True)
    assert plan.tables == 4


def test_blocks_of_a_segment_take_its_windows_in_turn():
    """At a time, all blocks are at windows that are neighbours in memory."""
    for shape in ((8192, 4, 49, 32, 0), (1360, 24, 49, 32, 0), (10880, 3, 49, 32, 64)):
        sizes, plan = planned(shape, packed=True)
        assert plan.ways > 1
        orders = [sorted(block_items(block, sizes, plan)) for block in range(plan.grid)]
        assert max(map(len, orders)) - min(map(len, orders)) <= plan.tables
        for at in (0, 40):
            windows = {Item(order[at][0], sizes, plan).window for order in orders}
            assert max(windows) - min(windows) < plan.grid


@pytest.mark.parametrize("shape", [(9, 4, 49, 24, 1), (9, 4, 257, 32, 1), (9, 4, 0, 32, 1)])
def test_tiles_do_not_fit_everything(shape):
    assert planned(shape)[1] is None


class Item:
    """Item of attention_tiles.cuh."""

    def __init__(self, item, sizes, plan):
        together = max(1, plan.tables)
        of, rest = divided(item, plan.segment)
        self.mask, group = divided(of, sizes.heads // together)
        self.table = rest % together
        self.head = group * together + self.table
        self.window = rest // together * max(1, sizes.masks) + self.mask


@cache
def divisor(size):
    return tuple(part.value for part in fast_divisor(size, 32))


def divided(n, size):
    multiplier, shift = divisor(size)
    quotient = ((n * multiplier >> 32) + n) >> shift
    return quotient, n - quotient * size


def block_items(block, sizes, plan):
    """(item, first item whose tables are there) as the teams of a block take them: attend() of attention_tiles.cuh."""
    together = max(1, plan.tables)
    if plan.ways > 1:
        segment, turn = divmod(block, plan.ways)
        first = segment * plan.segment + turn * together
        count = (plan.segment // together - turn + plan.ways - 1) // plan.ways * together
    else:
        first = sizes.items * block // plan.grid
        count = sizes.items * (block + 1) // plan.grid - first

    def item_of(number):
        return first + number + number // together * ((plan.ways - 1) * together)

    begin, following = 0, list(range(plan.teams))
    while begin < count:
        segment = divided(item_of(begin), plan.segment)[0]
        end = min(count, (segment + 1) * plan.segment - first) if plan.tables else count
        for team in range(plan.teams):
            while following[team] < end:
                yield item_of(following[team]), item_of(begin)
                following[team] += plan.teams
        begin = end


@pytest.mark.parametrize("shape", [rare(one) if one[0] * one[1] > 30_000 else one for one in PLANNED], ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chip", [CHIPS[0], rare(CHIPS[1]), rare(CHIPS[2])], ids=["H200", "A100", "small"])
def test_blocks_take_each_window_and_head_once(shape, packed, chip):
    sizes, plan = planned(shape, packed, chip)
    if plan is None or (sizes.windows > 1000 and (packed or chip is not H200)):
        return  # many windows take seconds, so they are counted once
    taken = []
    for block in range(plan.grid):
        for number, begin in block_items(block, sizes, plan):
            item, first = Item(number, sizes, plan), Item(begin, sizes, plan)
            taken.append((item.window, item.head))
            assert item.mask == item.window % max(1, sizes.masks)
            if plan.tables:
                assert item.mask == first.mask
                assert item.head - item.table == first.head - first.table
    assert sorted(taken) == list(itertools.product(range(sizes.windows), range(sizes.heads)))


@pytest.mark.parametrize("hold", [False, True])
def test_each_pair_of_tiles_of_a_band_has_scores(hold):
    """A single band may lack its last tile of 8 keys, and no pair; a band less would lack keys."""
    for tokens in range(1, 257):
        bands, pairs = shared.bands_of(tokens, hold)
        tiles = -(-tokens // 8) if bands == 1 else 2 * pairs
        assert tiles in (2 * pairs - 1, 2 * pairs)
        assert (bands - 1) * pairs * 16 < tokens <= bands * pairs * 16


# ---- Lanes and tiles, with the names of attention_fragments.cuh. An address is a row and a column here.

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
    tokens, size = q.shape
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


@one_test("size", [16, 32, 48, 64])
def test_a_team_fetches_each_chunk_of_a_matrix_once(size):
    """fetch_matrix() of attention_tiles.cuh: a thread's chunks at fixed distances, where their order repeats."""
    chunks = size // 8
    for tokens, team in itertools.product((1, 7, 8, 9, 33, 49, 64, 100, 144, 256), range(1, 17)):
        threads, found = 32 * team, {}
        at_a_time = threads // chunks
        if threads % (8 * chunks):
            continue
        for thread, first in itertools.product(range(threads), range(0, tokens, at_a_time)):
            row, chunk = divmod(thread, chunks)
            if first + at_a_time <= tokens or row < tokens - first:
                found[chunk_at(row, chunk, chunks) + first * chunks] = row + first, chunk
        wanted = {chunk_at(row, chunk, chunks): (row, chunk) for row in range(tokens) for chunk in range(chunks)}
        assert found == wanted


# ---- The mask.


def test_the_mask_is_swin_s():
    import torch

    side, across, shift = 7, 4, 3
    image = torch.zeros(side * across, side * across)
    cuts = (slice(0, -side), slice(-side, -shift), slice(-shift, None))
    for number, (down, right) in enumerate(itertools.product(cuts, cuts)):
        image[down, right] = number
    cut = image.view(across, side, across, side).transpose(1, 2).reshape(across**2, side**2)
    want = (cut[:, None, :] != cut[:, :, None]) * -100.0
    assert torch.equal(shared.shift_mask(across**2, side**2), want)


def test_masks_of_any_number_of_windows_and_tokens():
    for windows, tokens in ((1, 1), (2, 49), (3, 50), (600, 17)):
        mask = shared.shift_mask(windows, tokens)
        assert mask.shape == (windows, tokens, tokens)
        assert bool((mask.diagonal(dim1=1, dim2=2) == 0).all())
    assert set(shared.shift_mask(2, 50)[-1].flatten().tolist()) == {0.0, -100.0}


def test_windows_must_be_those_of_whole_images():
    with pytest.raises(ExpressionError, match="W = 9 isn't a multiple of G = 4"):
        shared.masks({"W": 9, "G": 4, "mask": "shift"})


@one_test("head", [16, 32, 48, 64])
def test_a_row_of_the_lowest_numbers_has_equal_weights(head):
    """Twin of begin_with and attend_tile: a finite number stays finite, and beyond FAR the difference comes first.

    The lowest bfloat16 times the scale is no number of float32, so its rounding alone would make weights of 0 or of
    infinity.
    """
    text = (Path(data("kernels")) / "attention" / "attention_tiles.cuh").read_text(encoding="utf-8")
    [far] = map(np.float32, re.findall(r"float FAR = ([\d.]+)f;", text))
    products = np.random.default_rng(head).normal(size=50).astype(np.float32) * np.float32(300)
    scale, most = np.float32(1.442695041) / np.sqrt(np.float32(head)), np.finfo(np.float32).max
    for added, equal in ((-3.3895313892515355e38, True), (-1e12, True), (-65504.0, False), (-100.0, False)):
        with np.errstate(over="ignore"):
            begin = np.clip(np.float32(added) * np.sqrt(np.float32(head)), -most, most)
        scores = begin + products
        largest = scores.max()
        if np.abs(largest) > far / scale:
            scores, largest = scores - largest, np.float32(0)
        exponents = scores.astype(np.float64) * float(scale) - float(np.float32(largest * scale))
        assert np.ptp(exponents) == 0 if equal else np.ptp(exponents) > 1
        assert exponents.max() == pytest.approx(0, abs=0 if equal else 1e-3)
