"""Plans for rows in turn: whatever the tunable numbers are, every row must be covered, within what a GPU allows."""

from __future__ import annotations

import itertools

import pytest

from harness.ops._device import H200, WARP, Device
from harness.ops._norm_plan import InTurn

A100 = Device(108, clusters=False, shared=163 * 1024)
ROWS = (0, 1, 8, 132, 1000, 10_000, 2**20)
COLUMNS = (*range(8, 300, 4), *(2**k + d for k in range(9, 20) for d in (-1, 0, 4, 8)), 30_528, 50_256, 128_256)


class FakeKernel:
    """Of whose clusters so many are resident."""

    def __init__(self, clusters):
        self.clusters = clusters

    def resident_clusters(self, *_):
        return self.clusters


@pytest.fixture(params=itertools.product((2, 4), (H200, A100)), ids=str)
def plans(request):
    """(rows, packs of a row, device, plan) for all rows and columns that have one."""
    itemsize, device = request.param
    every = [(r, c, InTurn.of(r, c, itemsize, device)) for r, c in itertools.product(ROWS, COLUMNS)]
    return [(r, c * itemsize // 16, device, plan) for r, c, plan in every if plan is not None]


@pytest.mark.parametrize("itemsize", [2, 4])
def test_many_long_rows_have_one(itemsize):
    for columns in (65_536, 128_256, 131_072):
        assert InTurn.of(2**27 // columns, columns, itemsize, H200) is not None, columns


def test_few_rows_and_short_rows_and_rows_that_are_no_packs_have_none():
    for rows, columns in ((0, 65_536), (1, 65_536), (33, 65_536), (10_000, 16_384), (10_000, 65_537), (10_000, 2**20)):
        assert InTurn.of(rows, columns, 2, H200) is None, (rows, columns)


def test_a_team_covers_its_row(plans):
    for rows, packs, _, plan in plans:
        most = plan.team.count * plan.team.threads * plan.team.cluster
        assert most >= packs, (rows, packs, plan)
        assert plan.whole == (most == packs), (rows, packs, plan)


def test_teams_are_what_a_gpu_has(plans):
    for rows, packs, device, plan in plans:
        assert plan.team.threads in range(WARP, 1025, WARP), (rows, packs, plan)
        assert plan.team.cluster in ((1, 2, 4, 8) if device.clusters else (1,)), (rows, packs, plan)


def test_blocks_fit_into_a_multiprocessor(plans):
    for rows, packs, device, plan in plans:
        team = plan.team
        assert plan.shared >= 16 * 3 * team.count * team.threads, (rows, packs, plan)  # x, gamma, beta
        assert plan.blocks >= 1
        assert plan.blocks * (plan.shared + 1024) <= device.shared + 1024, (rows, packs, plan)
        assert plan.blocks * team.threads <= 2048, (rows, packs, plan)


def test_the_grid_has_all_rows_and_no_team_without_one(plans):
    for (rows, packs, _, plan), resident in itertools.product(plans, (0, 1, 7, 1000)):
        team = plan.team
        grid = plan.grid(rows, FakeKernel(resident))
        most = max(1, min(plan.most, resident)) if team.cluster > 1 else plan.most
        assert grid % team.cluster == 0, (rows, packs, plan)
        at_once = grid // team.cluster
        assert at_once <= min(most, rows), (rows, packs, plan)
        # Fewer teams take no more turns than all that there is room for.
        assert -(-rows // at_once) == -(-rows // most), (rows, packs, plan)
