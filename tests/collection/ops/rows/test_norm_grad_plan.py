"""Plans of the norms' gradients: whatever the tunable numbers are, every row is covered, within what a GPU allows."""

from __future__ import annotations

import itertools

import pytest

from harness.collection.ops.chip import H200, Chip
from harness.collection.ops.rows._norm_grad import _total_teams
from harness.collection.ops.rows._norm_grad_plan import NormGradPlan, Row
from tests.one_test import one_test

A100 = Chip(108, clusters=False, shared=163 * 1024)
SMALL = Chip(170, clusters=True, shared=99 * 1024)  # as sm_120, whose clusters have 8 blocks at most
NARROW = Chip(128, clusters=False, shared=99 * 1024)  # as sm_89
ROWS = (1, 2, 4, 5, 8, 132, 1000, 2**17)
COLUMNS = (
    *range(1, 300),
    *(2**k + d for k in range(9, 19) for d in (-1, 0, 1, 8)),
    *(1000, 30_522, 50_257, 100_000, 128_256),
)


@pytest.fixture(scope="module", params=itertools.product((2, 4), (1, 2), (H200, A100)), ids=str)
def plans(request):
    """(rows, columns, elements a pack, sums, chip, plan) for all that have one."""
    itemsize, sums, chip = request.param
    every = [(r, c, NormGradPlan.of(r, c, itemsize, sums, chip)) for r, c in itertools.product(ROWS, COLUMNS)]
    return [(rows, columns, 16 // itemsize, sums, chip, plan) for rows, columns, plan in every if plan is not None]


def worth(rows, columns, itemsize, sums=2, chip=H200):
    """The plan, if there is one and it pays with all its teams; else None."""
    plan = NormGradPlan.of(rows, columns, itemsize, sums, chip)
    return plan if plan is not None and plan.worth(plan.teams) else None


def test_many_rows_have_a_plan_up_to_a_length(plans):
    """Rows of whole packs may be longer than other rows, since single elements take more registers."""
    planned = {columns for rows, columns, *_ in plans if rows == max(ROWS)}
    size, chip = plans[0][2], plans[0][4]
    packs, singles = (262_144, 196_608) if chip.clusters else (8192, 8192)
    assert planned >= {columns for columns in COLUMNS if columns <= (singles if columns % size else packs)}


def test_threads_have_all_of_a_row_and_miss_only_last_chunks(plans):
    for rows, columns, size, _, _, plan in plans:
        team = plan.team
        chunk = 1 if plan.singles else size
        threads = team.lanes or team.threads
        last = columns - (team.cluster - 1) * plan.piece
        assert plan.piece * team.cluster >= columns, (rows, columns, plan)
        assert plan.piece % chunk == 0
        assert (team.kept - 1) * threads * chunk < last <= plan.piece, (rows, columns, plan)
        assert plan.piece <= team.kept * threads * chunk, (rows, columns, plan)
        assert team.lanes or plan.tile_rows == team.at_once


def test_stages_fit_into_a_multiprocessor(plans):
    for rows, columns, size, sums, chip, plan in plans:
        team, itemsize = plan.team, 16 // size
        stage = 2 * plan.tile_bytes + sums * plan.row_bytes
        before = size - 1 if plan.singles else 0
        assert plan.tile_bytes >= (plan.tile_rows * plan.piece + before) * itemsize
        assert plan.row_bytes >= (plan.tile_rows + 3) * 4
        assert plan.tile_bytes % 16 == plan.row_bytes % 16 == 0
        assert plan.stages == 3 or plan.team.lanes or plan.team.at_once == 1
        assert plan.stages * stage <= plan.shared <= chip.shared
        # As what an H200 or an A100 has: a KB more than a block may use, of which each block takes one.
        blocks = team.resident
        assert blocks * (plan.shared + 1024) <= chip.shared + 1024, (rows, columns, plan)
        warps = team.threads // 32
        assert not team.lanes or plan.shared >= warps * columns * 4


def test_what_a_compilation_takes_stays_within_registers(plans):
    """A thread has 128 registers. From row to row it keeps two floats a column, and gamma."""
    for rows, columns, size, sums, _, plan in plans:
        width = 1 if plan.singles else size
        assert plan.team.kept * width <= 32, (rows, columns, plan)
        assert 32 <= plan.team.threads <= (1024 if plan.team.kept * width <= 8 else 512)
        assert plan.team.threads % 32 == 0
        assert plan.team.at_once * sums * plan.team.cluster <= 32  # a warp has a lane for each sum and block


def test_a_thread_has_as_many_single_elements_as_it_reduces_at_a_time(plans):
    """The lanes of a row are the fewest of which a thread has no more."""
    found = [plan.team for *_, plan in plans if plan.singles and plan.team.lanes]
    assert found
    assert all(team.kept <= 16 and (team.lanes == 1 or team.kept > 8) for team in found)
    assert {team.lanes for team in found} >= {1, 16, 32}
    # Gradients take the place of dy in shared memory: teams without a row in the last turn would write behind the tile.
    assert all(plan.tile_rows * plan.team.lanes % plan.team.threads == 0 for *_, plan in plans if plan.team.lanes)


@one_test(
    ("columns", "itemsize", "sums", "cluster"),
    [
        (128_256, 2, 1, 16),
        (128_000, 2, 1, 16),
        (127_992, 2, 1, 8),
        (131_072, 2, 2, 8),
        (131_080, 2, 2, 16),
        (65_536, 4, 1, 16),
        (65_536, 4, 2, 8),
        (65_540, 4, 2, 16),
        (98_304, 2, 1, 8),
        (98_305, 2, 1, 16),
    ],
)
def test_clusters_of_16_take_long_rows(columns, itemsize, sums, cluster):
    assert NormGradPlan.of(2**10, columns, itemsize, sums, H200).team.cluster == cluster
    small = NormGradPlan.of(2**10, columns, itemsize, sums, SMALL)
    assert small is None or small.team.cluster <= 8
    few = NormGradPlan.of(4, columns, itemsize, sums, H200)
    assert few is None or few.team.cluster <= 8


def test_few_rows_are_not_worth_it_unless_one_team_is_enough():
    for rows, columns in itertools.product((1, 8, 132), (1024, 16_384, 131_072)):
        plan = worth(rows, columns, 2)
        if rows == 1 or (rows, columns) == (8, 1024):
            assert plan is not None
            assert plan.teams == 1
    assert worth(8, 16_384, 2) is None
    assert worth(132, 16_384, 2) is None
    assert NormGradPlan.of(512, 262_152, 2, 2, H200) is None
    assert NormGradPlan.of(0, 1024, 2, 2, H200) is None


@one_test(
    ("columns", "itemsize", "sums", "resident"),
    [
        *((520, 2, 2, 8), (2049, 2, 2, 2), (3001, 2, 1, 2), (5120, 2, 2, 2), (4096, 2, 2, 2), (1024, 2, 1, 4)),
        *((640, 2, 2, 5), (1600, 2, 2, 4)),  # 400 threads have work
        *((5120, 4, 2, 3), (11_008, 4, 1, 3), (260, 4, 2, 5), (3139, 4, 2, 1)),  # in clusters, and alone
        (38_000, 2, 2, 1),  # with two blocks there would be no room for two rows and all stages
    ],
)
def test_a_multiprocessor_has_enough_threads_with_work(columns, itemsize, sums, resident):
    plan = NormGradPlan.of(2**15, columns, itemsize, sums, H200)
    assert plan.team.resident == resident
    assert plan.stages == 3 or resident == max(1, 512 // plan.team.threads)
    small = NormGradPlan.of(2**15, columns, itemsize, sums, SMALL)
    assert small.team.resident == max(1, 512 // small.team.threads), "no such GPU was measured"


def test_more_blocks_of_a_multiprocessor_leave_the_tiles_worth_it():
    for rows in (529, 600, 1000, 2000):
        assert worth(rows, 5120, 2).teams == min(264, max(132, rows // 4)), rows


def test_tiles_are_worth_it_for_small_matrices_since_spread_rows_take_a_third_kernel():
    assert worth(64, 4096, 2).teams == 64
    assert worth(132, 1024, 2).teams == 132


def test_teams_that_add_parts_load_all_of_their_parts_at_once():
    # A warp loads 32 parts at once, four for each of 8 columns at a time.
    found = [_total_teams(parts, 500, 132) for parts in (2, 32, 33, 132, 528, 1000)]
    assert found == [(team, 1) for team in (32, 32, 64, 160, 544, 1024)]


def test_small_teams_share_blocks_where_teams_are_many():
    # An H200 runs 32 x 132 blocks at a time.
    assert [_total_teams(16, count, 132) for count in (4224, 4225)] == [(32, 1), (32, 8)]
    assert [_total_teams(parts, 30_000, 132) for parts in (66, 132, 528)] == [(96, 2), (160, 1), (544, 1)]


def test_two_blocks_have_a_pack_a_thread_where_a_search_tries_them():
    row = Row(16_384, 2, 1)
    assert [(team.kept, team.threads) for team in map(row.team_of_blocks, (2, 8))] == [(1, 1024), (2, 128)]
    assert row.team_of_blocks(2, shared=False).kept == 2
    assert NormGradPlan.of(4096, 16_384, 2, 1, H200).team.cluster == 8


@one_test(
    ("rows", "columns", "chip", "kept", "threads", "at_once"),
    [
        (8192, 5120, H200, 1, 640, 2),
        (8192, 8192, H200, 1, 1024, 2),
        (264, 4104, H200, 2, 288, 1),  # each team has one pair of rows
        (8192, 4096, H200, 1, 512, 2),
        (64, 4096, H200, 1, 512, 1),
        (8192, 5120, NARROW, 2, 320, 1),  # no room for two rows and three stages
        (8192, 4096, NARROW, 1, 512, 2),
    ],
)
def test_a_thread_has_one_pack_of_a_longer_row_where_two_rows_share_a_reduction(
    rows, columns, chip, kept, threads, at_once
):
    team = NormGradPlan.of(rows, columns, 2, 1, chip).team
    assert (team.kept, team.threads, team.at_once) == (kept, threads, at_once)
