"""Plans for rows in turn: whatever the tunable numbers are, every row must be covered, within what a GPU allows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from harness.collection.ops.chip import H200, WARP, Chip
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import _wide_clusters
from harness.collection.ops.rows._norm_plan import InTurn
from harness.collection.ops.rows._rows import has_plan
from harness.model import Case

A100 = Chip(108, clusters=False, shared=163 * 1024)
ROWS = (0, 1, 8, 132, 1000, 10_000, 2**20)
COLUMNS = (*range(8, 300, 4), *(2**k + d for k in range(9, 20) for d in (-1, 0, 4, 8)), 30_522, 50_257, 128_256)


class FakeKernel:
    """A kernel of which `clusters` clusters are resident."""

    def __init__(self, clusters):
        self.clusters = clusters

    def resident_clusters(self, *_):
        return self.clusters


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A driver that lets every kernel have clusters of 16."""
    monkeypatch.setattr(_wide_clusters, "_allowed", lambda _: True)


@pytest.fixture(params=(2, 4))
def plans(request):
    """(rows, columns, bytes of an element, plan) for all rows and columns that have one."""
    itemsize = request.param
    every = [(r, c, itemsize, InTurn.of(r, c, itemsize, H200)) for r, c in itertools.product(ROWS, COLUMNS)]
    return [(*of, plan) for *of, plan in every if plan is not None]


@pytest.mark.parametrize("itemsize", [2, 4])
def test_many_long_rows_have_one(itemsize):
    for columns in (128_256, 131_072):
        assert InTurn.of(2**27 // columns, columns, itemsize, H200) is not None, columns


def test_few_rows_and_short_rows_have_none():
    long = 131_072
    for rows, columns in ((0, long), (1, long), (32, long), (10_000, 65_536), (10_000, 1791), (10_000, 2**20)):
        assert InTurn.of(rows, columns, 2, H200) is None, (rows, columns)


@pytest.mark.parametrize(
    ("columns", "itemsize", "blocks", "packs", "resident"),
    [
        (2065, 2, 1, 5, 8),
        (5001, 2, 1, 7, 5),
        (8191, 2, 1, 8, 4),
        (12_345, 2, 1, 7, 2),
        (30_522, 2, 1, 8, 1),
        (50_257, 2, 2, 8, 1),
        (131_071, 2, 4, 8, 1),
        (5001, 4, 1, 8, 3),
        (50_257, 4, 4, 8, 1),
    ],
)
def test_rows_that_begin_inside_of_packs_fill_a_multiprocessor_with_blocks(columns, itemsize, blocks, packs, resident):
    plan = InTurn.of(10_000, columns, itemsize, H200)
    assert plan is not None
    assert (plan.ragged, plan.blocks, plan.packs, plan.resident) == (True, blocks, packs, resident)


def test_rows_that_need_sixteen_blocks_have_none_where_there_are_eight():
    assert InTurn.of(10_000, 140_000, 4, H200).blocks == 16
    assert InTurn.of(10_000, 140_000, 4, Chip(132, clusters=True, shared=199 * 1024)) is None


def test_rows_of_few_packs_that_begin_inside_of_packs_have_none():
    assert InTurn.of(10_000, 1793, 2, H200) is not None
    assert InTurn.of(10_000, 1791, 2, H200) is None


def test_a_device_without_clusters_has_none():
    assert all(InTurn.of(2**20, columns, 2, A100) is None for columns in COLUMNS)


def test_what_goes_in_turn_fits_other_plans_too(plans):
    """The traffic of `tuned` asks these other plans whether x is read once."""
    assert all(has_plan({"M": rows, "N": columns}, itemsize) for rows, columns, itemsize, _ in plans)


def test_a_team_covers_its_row(plans):
    for rows, columns, itemsize, plan in plans:
        packs, rest = divmod(columns * itemsize, 16)
        most = plan.packs * plan.threads * plan.blocks
        assert most >= packs, (rows, columns, plan)
        assert plan.ragged == (rest > 0), (rows, columns, plan)
        assert plan.apart == next(n for n in range(1, 9) if n * columns * itemsize % 16 == 0), (rows, columns, plan)
        assert plan.whole == (most * 16 == columns * itemsize), (rows, columns, plan)


def test_teams_are_what_a_gpu_has(plans):
    for rows, columns, _, plan in plans:
        assert plan.threads in range(WARP, 1025, WARP), (rows, columns, plan)


def test_blocks_fit_into_a_multiprocessor(plans):
    for rows, columns, _, plan in plans:
        warps = plan.threads // WARP
        sums = 8 * plan.blocks * warps * 8 + 8 * 8  # eight times two floats of every warp, and a barrier
        arrivals = warps * plan.stages * 8
        assert plan.stages >= 3
        others = 1 + 4 * plan.ragged  # packs of a warp: the row's first one, and single elements
        assert plan.shared == plan.stages * 16 * warps * (WARP * plan.packs + others), (rows, columns, plan)
        # A multiprocessor has a kilobyte more than a block can have, and keeps a kilobyte of each block for itself.
        assert plan.resident * (plan.shared + sums + arrivals + 1024) <= H200.shared + 1024, (rows, columns, plan)
        assert plan.resident * plan.threads * 128 <= 65_536, (rows, columns, plan)  # registers


def test_the_grid_has_all_rows_and_few_teams(plans):
    for (rows, columns, itemsize, plan), resident in itertools.product(plans, (0, 1, 7, 1000)):
        grid = plan.grid(rows, FakeKernel(resident))
        assert grid % plan.blocks == 0, (rows, columns, plan)
        teams = grid // plan.blocks
        most = min(plan.most, resident)
        alike = most // plan.apart * plan.apart
        assert (grid == 0) == (alike == 0), "else there are too few teams for all places that rows begin at"
        if not grid:
            continue
        most = alike
        assert teams * columns * itemsize % 16 == 0, "rows of a team begin alike"
        assert teams <= min(most, rows + plan.apart - 1), (rows, columns, plan)
        # Fewer teams take no more turns than all that there is room for.
        assert -(-rows // teams) == -(-rows // most), (rows, columns, plan)


def test_the_compiler_leaves_registers_for_all_blocks_of_a_multiprocessor(ptx):
    plan = InTurn.of(10_000, 5001, 2, H200)
    assert plan
    made = ptx("layer_norm.cu", "layer_norm_in_turn", {"SCALAR": "__half", **plan.macros})
    assert f".minnctapersm {plan.resident}" in made


class Recorder(FakeKernel):
    """A kernel that notes that it ran. clusters: how many are resident."""

    def __init__(self, ran, clusters, entry):
        super().__init__(clusters)
        self.ran, self.entry = ran, entry

    def __call__(self, *_, **__):
        self.ran.append(self.entry)


def prepared(rows, columns, clusters):
    """What a launch of layer_norm is made from, and the kernels that it runs."""
    ran = []
    case = Case("layer_norm", "tuned", "float16", (("M", rows), ("N", columns)))
    made = {"kernel": lambda _file, entry, _macros: Recorder(ran, clusters, entry), "plan": lambda: {"in_turn": 1}}
    return SimpleNamespace(case=case, s=SimpleNamespace(M=rows, N=columns), **made), ran


@pytest.mark.parametrize(("offset", "entry"), [(0, "layer_norm_in_turn"), (1, "layer_norm_two_pass")])
def test_packs_that_are_not_aligned_go_another_way(offset, entry):
    import torch

    ctx, ran = prepared(100, 131_072, 16)
    launch = norm.in_turn(ctx, InTurn.of(100, 131_072, 2, H200), lambda t: (t.x,))
    assert launch
    launch(SimpleNamespace(x=torch.empty(16, dtype=torch.float16)[offset:]))
    assert ran == [entry]


@pytest.mark.parametrize(("clusters", "entry"), [(7, "layer_norm_tuned"), (8, "layer_norm_in_turn")])
def test_rows_go_another_way_where_no_clusters_begin_at_all_places(monkeypatch, clusters, entry):
    """Rows of each of eight places of a pack need a cluster."""
    import torch

    monkeypatch.setattr(Chip, "current", lambda: H200)
    ctx, ran = prepared(500, 200_001, clusters)
    norm.planned(ctx, lambda t: (t.x,), 2)(SimpleNamespace(x=torch.empty(16, dtype=torch.float16)))
    assert ran == [entry]
