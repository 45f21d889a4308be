"""What the ops of attention over windows share: plans, the order of items, and Swin's mask."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.attention import _window_attention_kernels as ours
from harness.collection.ops.attention import _window_attention_tuning as tuning
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
    (400, 6, 64, 30, 50),
    (512, 3, 256, 32, 16),
    (300, 3, 196, 32, 4),
    (64, 3, 49, 32, 64),
    (64, 6, 144, 32, 64),
    (1, 1, 1, 16, 1),
    (0, 4, 49, 32, 2),
]
CHIPS = [H200, Chip(108, clusters=False, shared=163 * 1024), Chip(1, clusters=False, shared=99 * 1024)]


def planned(shape, packed=False, chip=H200):
    *sizes, masks = shape
    made = ours.AttentionSizes(*sizes, bias=True, masks=masks, packed=packed)
    return made, ours.TilePlan.of(made, chip)


# ---- Plans.


@pytest.mark.slow  # test_kernels.py has that no kernel takes more than there is
@one_test("chip", CHIPS, ids=["H200", "A100", "small"])
@one_test("packed", [False, True])
def test_a_plan_fits_into_a_multiprocessor(chip, packed):
    for tokens, size, heads in itertools.product(range(1, 257), (2, 16, 30, 32, 48, 64), (1, 2, 3, 4, 12)):
        _, plan = planned((512, heads, tokens, size, 16), packed, chip)
        assert plan.shared <= chip.shared
        assert 32 <= plan.threads <= 640
        assert plan.threads == plan.team * plan.teams * 32
        assert plan.teams < 16 or plan.team == 1  # barriers of a block
        assert heads % max(1, plan.tables) == 0
        assert plan.grid <= chip.multiprocessors or plan.stages == 1 == plan.teams
        assert (plan.parts - 1) * plan.team * 16 < tokens <= plan.parts * plan.team * 16 or plan.hold


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
    _, plan = planned((500, 4, 49, 16, 2), packed=True)
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


def test_few_items_have_blocks_of_their_own():
    """No tables are made that one window needs, and none waits for the block's other windows."""
    for shape, team, parts in (((64, 3, 49, 32, 64), 4, 1), ((64, 6, 144, 32, 64), 5, 2), ((64, 3, 256, 32, 16), 4, 4)):
        sizes, plan = planned(shape)
        assert (plan.team, plan.teams, plan.parts, plan.tables, plan.stages) == (team, 1, parts, 0, 1)
        assert plan.grid == sizes.items * parts
    _, plan = planned((256, 3, 49, 32, 64))
    assert plan.grid <= H200.multiprocessors


def test_the_queries_of_long_windows_are_cut_where_their_tables_have_no_room():
    for shape, expected in (
        ((512, 3, 256, 32, 16), (2, 8, 2, 1, 1)),
        ((512, 3, 196, 32, 16), (2, 7, 2, 1, 2)),
        ((512, 3, 144, 32, 16), (1, 9, 2, 1, 2)),
        ((512, 3, 256, 64, 16), (1, 16, 1, 0, 2)),  # 8 warps would have tables
    ):
        _, plan = planned(shape)
        assert (plan.parts, plan.team, plan.teams, plan.tables, plan.stages) == expected, shape


def test_a_rule_is_a_plan_of_its_parameters():
    for shape in PLANNED:
        sizes, plan = planned(shape)
        stays = plan != ours.TilePlan.plain(sizes, H200, plan.parts)
        assert ours.TilePlan.made(sizes, H200, ours.TileNumbers(plan.tables, plan.teams, plan.parts, stays)) == plan
        assert plan.parts in tuning._PARTS
        assert plan.tables in tuning._TABLES


@pytest.mark.parametrize(
    ("tables", "teams", "parts", "stay"),
    [(1, 1, 1, False), (0, 2, 1, False), (0, 1, 4, True), (0, 1, 10, False), (0, 3, 1, True), (3, 1, 1, True)],
)
def test_numbers_that_do_not_go_together(tables, teams, parts, stay):
    """Blocks that don't stay have nothing to keep; nine tiles make no fourth part; and what has no room."""
    sizes, _ = planned((2048, 4, 144, 32, 64))
    assert ours.TilePlan.made(sizes, H200, ours.TileNumbers(tables, teams, parts, stay)) is None


@pytest.mark.parametrize("shape", [(9, 4, 49, 27, 1), (9, 4, 49, 66, 1), (9, 4, 257, 32, 1), (9, 4, 0, 32, 1)])
def test_tiles_do_not_fit_everything(shape):
    assert planned(shape)[1] is None


class Item:
    """Item of attention_items.cuh."""

    def __init__(self, item, sizes, plan):
        together = max(1, plan.tables)
        of, rest = divided(item, plan.segment)
        self.mask, group = divided(of, sizes.heads // together * plan.parts)
        self.table = rest % together
        self.part = group % plan.parts
        self.head = group // plan.parts * together + self.table
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
        items = sizes.items * plan.parts
        first = items * block // plan.grid
        count = items * (block + 1) // plan.grid - first

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
            taken.append((item.window, item.head, item.part))
            assert item.mask == item.window % max(1, sizes.masks)
            if plan.tables:
                assert item.mask == first.mask
                assert item.head - item.table == first.head - first.table
                assert item.part == first.part
    assert sorted(taken) == list(itertools.product(range(sizes.windows), range(sizes.heads), range(plan.parts)))


@pytest.mark.parametrize("hold", [False, True])
def test_each_pair_of_tiles_of_a_band_has_scores(hold):
    """A single band may lack its last tile of 8 keys, and no pair; a band less would lack keys."""
    for tokens in range(1, 257):
        bands, pairs = ours.bands_of(tokens, hold)
        tiles = -(-tokens // 8) if bands == 1 else 2 * pairs
        assert tiles in (2 * pairs - 1, 2 * pairs)
        assert (bands - 1) * pairs * 16 < tokens <= bands * pairs * 16


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
