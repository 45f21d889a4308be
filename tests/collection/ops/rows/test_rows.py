"""Plans of row kernels: whatever the tunable numbers are, every row must be covered, within what a GPU allows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from harness import cuda
from harness.collection.ops.chip import H200, WARP, Chip
from harness.collection.ops.rows._rows import RowPlan, has_plan, planned
from tests.one_test import one_test

ROWS = (0, 1, 2, 8, 132, 1000, 2**20)
COLUMNS = (
    *range(1, 300),
    *(2**k + d for k in range(9, 20) for d in (-1, 0, 1, 8)),
    *(1000, 30_522, 50_257, 100_000, 128_256),
)
SHARED_MEMORY = 99 * 1024  # bytes that a block may have on every architecture from sm_80 on
MATRICES = 3  # of which a kernel has a tile, at most
A100 = Chip(108, clusters=False, shared=163 * 1024)
DEVICES = [H200, A100, Chip(20, clusters=False, shared=SHARED_MEMORY)]
FINDERS = (RowPlan.of, RowPlan.with_vectors, partial(RowPlan.with_vectors, norm=True))


@pytest.fixture(scope="module", params=itertools.product((2, 4), DEVICES, FINDERS), ids=str)
def plans(request):
    """(rows, columns, elements a pack, plan) for all rows and columns that have one on the device."""
    itemsize, device, find = request.param
    every = [(r, c, find(r, c, itemsize, device)) for r, c in itertools.product(ROWS, COLUMNS)]
    return [(rows, columns, 16 // itemsize, plan) for rows, columns, plan in every if plan is not None]


def team(plan):
    """Threads that share a row."""
    return plan.lanes or plan.threads * plan.cluster


@pytest.mark.parametrize("itemsize", [2, 4])
def test_rows_up_to_131072_have_a_plan_where_blocks_form_clusters(itemsize):
    for rows, columns in itertools.product(ROWS, (3, 197, 1023, 4096, 30_522, 50_257, 65_536, 128_256, 131_072)):
        assert RowPlan.of(rows, columns, itemsize, H200) is not None, (rows, columns)


def test_a_row_that_no_cluster_can_hold_has_none():
    assert RowPlan.of(1, 2**30, 2, H200) is None
    assert RowPlan.of(1, 2**30, 2, A100) is None


@pytest.mark.parametrize("itemsize", [2, 4])
def test_whether_there_is_a_plan_does_not_depend_on_the_rows(itemsize):
    for rows, columns in itertools.product(ROWS, (1, 197, 65_536, 131_072, 262_144, 300_000, 524_288, 2**20, 2**31)):
        found = has_plan({"M": rows, "N": columns}, itemsize)
        assert found == (RowPlan.of(1000, columns, itemsize, H200) is not None), (rows, columns)
        assert found == (RowPlan.with_vectors(rows, columns, itemsize, H200) is not None), (rows, columns)


def test_a_team_covers_its_row(plans):
    for rows, columns, size, plan in plans:
        elements = columns if plan.tile_rows else columns // size
        assert plan.count * team(plan) >= elements, (rows, columns, plan)


def test_only_rows_that_begin_inside_of_packs_are_ragged(plans):
    for rows, columns, size, plan in plans:
        assert plan.ragged == (columns % size != 0 and not plan.tile_rows), (rows, columns, plan)


def test_a_ragged_row_has_threads_for_its_single_elements(plans):
    for rows, columns, size, plan in plans:
        if plan.ragged:
            assert team(plan) >= 2 * (size - 1), (rows, columns, plan)


def test_teams_are_what_a_gpu_has(plans):
    for rows, columns, _, plan in plans:
        assert plan.threads in range(WARP, 1025, WARP), (rows, columns, plan)
        assert plan.lanes in (0, 1, 2, 4, 8, 16, 32), (rows, columns, plan)
        assert plan.cluster in range(1, 9), (rows, columns, plan)
        assert plan.cluster == 1 or not plan.lanes, (rows, columns, plan)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_no_clusters_where_the_device_has_none(itemsize):
    for rows, columns in itertools.product(ROWS, COLUMNS):
        plan = RowPlan.of(rows, columns, itemsize, A100)
        assert plan is None or plan.cluster == 1


def test_few_rows_are_shared_by_blocks_if_they_are_long_enough():
    assert [RowPlan.of(rows, 4544, 2, H200).cluster for rows in (1, 8, 132)] == [1, 1, 1]
    assert [RowPlan.of(rows, 8192, 2, H200).cluster for rows in (1, 8, 132)] == [8, 8, 1]


@pytest.mark.parametrize(
    ("columns", "lanes"),
    [
        *[(72, (16, 16)), (80, (4, 16)), (96, (4, 16)), (160, (8, 8)), (192, (8, 8)), (256, (32, 32))],
        *[(320, (16, 16)), (384, (16, 16)), (640, (32, 32)), (768, (32, 32)), (1024, (0, 0))],
    ],
)
def test_a_lane_has_three_packs_of_one_row_of_halves_that_shares_vectors_if_nearly_all_lanes_have(columns, lanes):
    for vectors, own in zip((1, 2), lanes, strict=True):
        plan = RowPlan.with_vectors(16384, columns, 2, H200, vectors)
        assert plan.lanes == own
        three = columns * 2 // 16 >= 0.8 * 3 * own if own else False
        assert ((plan.count, plan.together) == (3, 1)) == three


@pytest.mark.parametrize(
    ("columns", "count", "lanes", "threads"),
    [(320, 5, 8, 128), (640, 5, 16, 128), (1280, 5, 32, 256), (448, 7, 8, 128), (896, 7, 16, 128), (1792, 7, 32, 256)],
)
def test_a_lane_has_many_packs_of_one_row_of_halves_if_all_lanes_have(columns, count, lanes, threads):
    plan = RowPlan.with_vectors(16384, columns, 2, H200, norm=True)
    assert plan == RowPlan(count, lanes, threads)
    assert plan.holds(columns, 2)
    assert RowPlan.with_vectors(16384, columns, 2, H200).count < 5, "vectors are in registers"


@pytest.mark.parametrize("columns", [160, 648, 768, 1920, 2560])
def test_lanes_have_many_packs_only_if_all_have_the_same_number_and_are_in_one_warp(columns):
    assert RowPlan.with_vectors(16384, columns, 2, H200, norm=True) == RowPlan.with_vectors(16384, columns, 2, H200)


def test_blocks_share_rows_of_a_norms_halves_at_some_lengths():
    def clusters(vectors, chip=H200, norm=True):
        sizes = (6656, 8192, 8456, 10240, 10248, 16896)
        return [RowPlan.with_vectors(4096, columns, 2, chip, vectors, norm=norm).cluster for columns in sizes]

    assert clusters(vectors=2) == [1, 1, 1, 1, 2, 2]
    assert clusters(vectors=1) == [1, 4, 1, 1, 1, 1]
    assert clusters(vectors=1, norm=False) == [1] * 6
    assert clusters(vectors=2, chip=replace(H200, clusters=False)) == [1] * 6
    long = RowPlan.with_vectors(4096, 14_336, 2, H200, norm=True)
    assert (long.count, long.cluster, long.together, long.threads) == (4, 2, 2, 224)


@one_test(
    ("columns", "cluster", "threads"),
    [(131_072, 4, 1024), (147_456, 8, 576), (147_464, 5, 928), (151_936, 5, 960), (250_880, 8, 992)],
)
def test_two_matrices_have_few_large_blocks_where_a_multiprocessor_has_room_for_one_block(columns, cluster, threads):
    plan = RowPlan.of(4096, columns, 2, H200, 2)
    assert (plan.count, plan.cluster, plan.threads) == (4, cluster, threads)
    assert RowPlan.of(4096, columns // 2, 4, H200, 2) == plan
    assert RowPlan.of(4096, 262_152, 2, H200, 2) is None


@pytest.mark.parametrize(("vectors", "columns", "cluster"), [(1, 7168, 1), (1, 8192, 1), (2, 14_336, 2)])
def test_two_rows_are_together_only_where_there_are_more_rows_than_multiprocessors(vectors, columns, cluster):
    few, many = (RowPlan.with_vectors(rows, columns, 2, H200, vectors, norm=True) for rows in (64, 133))
    assert (few.together, few.cluster) == (1, cluster)
    assert many.together == 2


@pytest.mark.parametrize(
    ("rows", "columns", "stream"),
    [
        *[(2**15, 1024, 1), (2**17, 256, 1), (2**17, 257, 0), (2**17 + 1, 256, 0)],  # a block, lanes, ragged lanes
        *[(3 * 2**15, 1024, 1), (3 * 2**15 + 1, 1024, 0), (2**10, 30522, 0)],
    ],
)
def test_lines_of_a_matrix_that_is_not_much_larger_than_the_l2_are_given_up_first(rows, columns, stream):
    plan = RowPlan.with_vectors(rows, columns, 2, H200)
    assert plan.streams(rows, columns, 2) == stream


@pytest.mark.parametrize("lanes", [0, 32])
def test_loads_and_stores_say_that_lines_are_given_up_first(ptx, lanes):
    plan = {"COUNT": 2, "LANES": lanes, "THREADS": 64, "CLUSTER": 0, "RAGGED": 0, "TILE": 0, "TOGETHER": 1, "WHOLE": 1}
    plain, streamed = (
        ptx("rms_norm.cu", "rms_norm_tuned", {"SCALAR": "__half", **plan, "STREAM": stream}) for stream in (0, 1)
    )
    assert not plain.count("global.cs")
    assert streamed.count("ld.global.cs") == streamed.count("st.global.cs") == 2


def test_floats_that_share_one_vector_have_more_threads_for_a_row_in_a_tile():
    one, two = (RowPlan.with_vectors(5000, 197, 4, H200, vectors) for vectors in (1, 2))
    assert (one.lanes, one.count, two.lanes, two.count) == (32, 7, 16, 13)
    assert RowPlan.with_vectors(5000, 197, 2, H200, 1) == RowPlan.with_vectors(5000, 197, 2, H200, 2)


def test_tiles_are_whole_packs_and_fit_into_shared_memory(plans):
    for rows, columns, size, plan in plans:
        elements = plan.tile_rows * columns
        assert elements % size == 0, (rows, columns, plan)
        # The kernel takes it that all threads have all their elements but the last one.
        assert not elements or (plan.count - 1) * plan.lanes < columns <= plan.count * plan.lanes, (rows, columns, plan)
        assert MATRICES * elements * 16 // size <= SHARED_MEMORY, (rows, columns, plan)


def test_the_grid_has_all_rows_and_no_block_without_one(plans):
    for rows, columns, _, plan in plans:
        a_block = plan.tile_rows or (plan.threads // plan.lanes * plan.together if plan.lanes else 0)
        if plan.ragged and plan.together > 1:
            continue  # see the next test
        if a_block:
            assert (plan.grid(rows) - 1) * a_block < max(rows, 1) <= max(plan.grid(rows), 1) * a_block, (rows, plan)
        else:
            assert plan.grid(rows) == -(-rows // plan.together) * plan.cluster, (rows, columns, plan)


@one_test("plan", [RowPlan(4, 32, 128, ragged=True, together=2), RowPlan(4, 0, 224, 8, ragged=True, together=2)])
def test_the_grid_has_all_rows_where_a_team_has_every_eighth_row(plan):
    teams_of_block = plan.threads // plan.lanes if plan.lanes else 1
    for rows in (0, 1, 8, 9, 16, 17, 100, 1000):
        teams = plan.grid(rows) // plan.cluster * teams_of_block
        first = [team // 8 * 16 + team % 8 for team in range(teams)]
        assert set(range(rows)) <= {*first, *(row + 8 for row in first)}
        assert teams < rows + 8


@one_test(
    ("columns", "itemsize", "plan"),
    [
        (259, 2, (1, 32, 128)),
        (1023, 2, (4, 32, 128)),
        (1041, 2, (2, 0, 96)),
        (8191, 2, (2, 0, 512)),
        (257, 4, (2, 32, 128)),
        (4097, 4, (2, 0, 512)),
    ],
)
def test_many_rows_that_begin_alike_share_two_vectors(columns, itemsize, plan):
    count, lanes, threads = plan
    wanted = RowPlan(count, lanes, threads, ragged=True, together=2)
    assert RowPlan.with_vectors(4096, columns, itemsize, H200, norm=True) == wanted
    assert wanted.count * (lanes or threads) >= columns * itemsize // 16
    assert wanted.threads >= 2 * 16 // itemsize, "single elements have a thread each"
    for other in (
        RowPlan.with_vectors(4096, columns, itemsize, H200),
        RowPlan.with_vectors(4096, columns, itemsize, H200, 1, norm=True),
        RowPlan.with_vectors(60, columns, itemsize, H200, norm=True),
        RowPlan.with_vectors(4096, 8201, 2, H200, norm=True),
    ):
        assert other.together == 1


def test_a_team_has_several_rows_only_of_packs_that_begin_alike(plans):
    for rows, columns, _, plan in plans:
        assert plan.together in (1, 2, 4), (rows, columns, plan)
        assert plan.together <= (1 if plan.tile_rows else 2 if plan.ragged else 4), (rows, columns, plan)
        # What is kept of all rows must fit into registers.
        assert plan.count * plan.together <= (16 if plan.tile_rows else 8), (rows, columns, plan)


def test_lanes_lack_no_more_than_their_last_pack(plans):
    for rows, columns, size, plan in plans:
        if plan.lanes and not plan.tile_rows:
            assert (plan.count - 1) * plan.lanes <= columns // size, (rows, columns, plan)


def test_a_team_holds_a_row_that_leaves_none_of_its_packs_empty(plans):
    for rows, columns, size, plan in plans:
        whole = not plan.tile_rows and columns == plan.count * team(plan) * size
        assert plan.holds(columns, 16 // size) == whole, (rows, columns, plan)


def test_the_macros_say_which_team_it_is(plans):
    for rows, columns, _, plan in plans:
        macros = plan.macros
        assert macros["COUNT"] >= 1, (rows, columns, plan)
        assert (macros["LANES"] > 0) + macros["CLUSTER"] <= 1, (rows, columns, plan)
        assert macros["RAGGED"] + macros["TILE"] <= 1, (rows, columns, plan)
        assert macros["THREADS"] == plan.threads


@pytest.fixture
def called(monkeypatch):
    """called(columns, offset): which of kernel and fallback has run, on a tensor so many elements off 16 bytes."""
    import torch

    monkeypatch.setattr(cuda, "multiprocessors", lambda: H200.multiprocessors)
    monkeypatch.setattr(cuda, "has_clusters", lambda: H200.clusters)
    monkeypatch.setattr(cuda, "shared_memory", lambda: H200.shared)

    def call(columns, offset):
        ran = []
        case, sizes = SimpleNamespace(op="softmax", dtype="float32"), SimpleNamespace(M=1, N=columns)

        def kernel(*where):
            return lambda *_, **__: ran.append(where[:2])

        ctx = SimpleNamespace(case=case, s=sizes, kernel=kernel)
        plan = RowPlan.of(1, columns, 4, H200)
        launch = planned(ctx, plan, lambda _: ran.append("fallback"), lambda t: (t.x,))
        launch(SimpleNamespace(x=torch.empty(16)[offset:]))
        return ran

    return call


@pytest.mark.parametrize("columns", [8, 1023, 262_144])
def test_the_planned_kernel_runs_where_packs_are_aligned(called, columns):
    assert called(columns, 0) == [("softmax.cu", "softmax_tuned")]


@pytest.mark.parametrize(("columns", "offset"), [(8, 1), (1023, 2), (262_144, 3), (262_148, 0)])
def test_the_fallback_runs_elsewhere(called, columns, offset):
    assert called(columns, offset) == ["fallback"]


def test_tiles_have_any_address(called):
    assert called(3, 1) == [("softmax.cu", "softmax_tuned")]
