"""Plans for rows in registers: each unit of a row is one thread's."""

from __future__ import annotations

import itertools

from harness import cuda
from harness.collection.ops.quantise._row_units import UNIT_SIZES, UnitRowPlan
from harness.collection.ops.quantise.dequantize_bias_residual_layer_norm_quantize import OP
from harness.model import Case
from tests.one_test import one_test

COLUMNS = sorted({*range(1, 300), 384, 768, 1000, 1023, 1024, 1536, 3072, 4095, 4096, 8190, 8191, 8192, 16384, 32768})


@one_test("first", range(9))
def test_the_threads_of_a_team_have_each_unit_of_a_row_once(first):
    for columns in COLUMNS[first::9]:
        assert_units(columns)


def assert_units(columns):
    for make in (UnitRowPlan.of, UnitRowPlan.of_few):
        plan = make(columns)
        if plan is None:
            assert columns > (8192 if make == UnitRowPlan.of or columns % 2 == 0 else 4096)
        else:
            assert_plan(columns, plan)


def assert_plan(columns, plan):
    assert plan.size in UNIT_SIZES
    assert columns % plan.size == 0
    units, team = columns // plan.size, plan.lanes or plan.threads
    had = [rank + j * team for rank, j in itertools.product(range(team), range(plan.count))]
    assert sorted(unit for unit in had if unit < units) == list(range(units))
    # Only a thread's last unit may be missing.
    assert (plan.count - 1) * team < units
    assert plan.full == (len(had) == units)
    assert plan.threads % 32 == 0
    assert plan.threads <= 1024
    assert plan.macros["RESIDENT"] >= plan.threads


@one_test("first", range(9))
def test_a_grid_has_each_row_once(first):
    """The arithmetic of Rows: which rows a team works on."""
    for columns in COLUMNS[first::9]:
        assert_rows(columns)


def assert_rows(columns):
    plan = UnitRowPlan.of(columns)
    if plan is None or not plan.lanes:
        return
    teams = 32 // plan.lanes
    for rows in (0, 1, 5, 127, 128, 513):
        found = []
        for block, warp, team in itertools.product(range(plan.grid(rows)), range(plan.threads // 32), range(teams)):
            first = (block * (plan.threads // 32) + warp) * teams * plan.together + team
            found += [first + r * teams for r in range(plan.together)]
        assert sorted(row for row in found if row < rows) == list(range(rows))


@one_test("columns", [96, 128, 192, 256, 384, 512, 768, 1024, 1536, 3072, 4096])
def test_no_lane_is_idle_in_the_rows_of_swin_and_bert(columns):
    plan = UnitRowPlan.of(columns)
    assert plan.full
    assert plan.size == 4


def test_few_rows_have_a_warp_or_a_block_each_and_few_units_a_thread():
    found = {columns: UnitRowPlan.of_few(columns) for columns in (96, 384, 388, 768, 4096, 8192)}
    assert {columns: (plan.lanes, plan.count, plan.threads) for columns, plan in found.items()} == {
        96: (32, 1, 128),
        384: (32, 3, 128),
        388: (0, 1, 128),
        768: (0, 1, 192),
        4096: (0, 2, 512),
        8192: (0, 4, 512),
    }
    assert UnitRowPlan.of_few(8196) is None
    assert all(plan.macros["EARLY"] == 1 for plan in found.values())
    assert "EARLY" not in UnitRowPlan.of(768).macros


def test_rows_are_few_while_each_has_a_multiprocessor(monkeypatch):
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)

    def plan(rows, columns):
        case = Case(OP.name, "tuned", "float16", (("M", rows), ("C", columns)), (("scales", "channel"),))
        tuning = OP.variants["tuned"].tuning
        assert tuning.obstacle(case, tuning.rule(case)) is None
        return tuning.rule(case)

    few, many = (
        {"lanes": 0, "count": 1, "together": 1, "early": 1},
        {"lanes": 32, "count": 6, "together": 1, "early": 0},
    )
    assert [plan(rows, 768) for rows in (1, 132, 133)] == [few, few, many]
    assert plan(1, 16_384)["early"] == 0, "threads lack registers"


def test_early_loads_need_registers():
    assert UnitRowPlan.made(16384, 0, 4, 1, early=True) is None
    assert UnitRowPlan.made(16384, 0, 4, 1, early=False) is not None
    assert UnitRowPlan.made(768, 32, 6, 1, early=True) is None
    assert UnitRowPlan.made(768, 32, 6, 1, early=False) is not None


def test_long_rows_have_no_plan():
    assert UnitRowPlan.of(16384) is not None
    assert UnitRowPlan.of(16388) is None
    assert UnitRowPlan.of(8191) is not None
    assert UnitRowPlan.of(8193) is None
