"""Tiles of rows that aren't whole units: each element is stored once, and nothing else is touched."""

from __future__ import annotations

import numpy as np

from harness.collection.ops.quantise._row_runs import SIZE, RowRunPlan
from tests.one_test import one_test

COLUMNS = [2, 3, 5, 7, 13, 49, 97, 98, 127, 255, 383, 385, 509, 511, 513, 514, 1023, 1025, 1026, 4095, 6143, 7675]
KINDS = [(2, False), (2, True), (4, False), (4, True)]


def plans(columns):
    """The plans of all types that have one."""
    found = (RowRunPlan.of(columns, itemsize, channel=channel) for itemsize, channel in KINDS)
    return {plan for plan in found if plan}


def tile_of(plan, columns, row, rows, skipped):
    """What a block does with a tile: elements that it loads, elements that it stores, columns of each thread's unit."""
    used = -(-(skipped + plan.rows * columns) // SIZE)
    begin, left = row * columns - skipped, rows * columns - (row * columns - skipped)
    end = skipped + min(rows - row, plan.rows) * columns
    assert begin % SIZE == 0
    place = np.arange(plan.units * plan.threads)
    has = (place // plan.threads + 1 < plan.units) | (place < used)
    element = place[:, None] * SIZE + np.arange(SIZE)
    source = np.where(has[:, None], element, np.arange(SIZE))
    loaded = source if used * SIZE <= left else element[element < left]
    stored = element[(skipped <= element) & (element < end)]
    start = np.where(has, place * SIZE, 0) + columns - skipped
    return begin + loaded, begin + stored, (start // columns - 1, start % columns)


@one_test("columns", COLUMNS)
@one_test("multiprocessors", [1, 2])
def test_blocks_store_each_element_once_and_load_only_the_tensor(columns, multiprocessors):
    for plan in plans(columns):
        held = multiprocessors * (plan.resident // plan.threads)
        for rows in {1, 2, plan.rows + 1, plan.rows * 7 + 3, plan.rows * (held + 5)}:
            if rows * columns > 30_000:
                continue
            grid, everything = plan.grid(rows, multiprocessors), []
            for block in range(grid):
                skipped, row = (0 if plan.lanes else block * columns % SIZE), block * plan.rows
                assert row < rows
                while row < rows:
                    loaded, stored, kept = tile_of(plan, columns, row, rows, skipped)
                    assert loaded.min() >= 0
                    assert loaded.max() < rows * columns
                    everything.append(stored)
                    if row == block * plan.rows:
                        columns_of = kept
                    place, e = np.divmod(stored - (row * columns - skipped), SIZE)
                    of_first, column = (each[place] for each in columns_of)
                    assert ((column + e) % columns == stored % columns).all()
                    if plan.lanes:
                        of_row = of_first + (e >= np.minimum(columns - column, SIZE))
                        assert (of_row == stored // columns - row).all()
                        assert (of_row < plan.rows).all()
                    row += grid * plan.rows
            assert np.array_equal(np.sort(np.concatenate(everything)), np.arange(rows * columns))


@one_test("first", range(17))
def test_plans_fit_a_block(first):
    every = [*range(2, 1100), *range(1101, 8000, 17)]
    for columns, plan in ((each, plan) for each in every[first::17] for plan in plans(each)):
        assert columns % SIZE
        assert plan.threads % 32 == 0
        assert plan.threads <= plan.resident <= 1024
        used = -(-(plan.rows * columns + (0 if plan.lanes else SIZE - 1)) // SIZE)
        assert used <= plan.units * plan.threads
        assert used > (plan.units - 1) * plan.threads  # only the last unit of a thread may be missing
        if plan.lanes:
            assert plan.rows * columns % SIZE == 0
            assert plan.parts <= 16
            assert (plan.parts - 1) * plan.lanes < columns <= plan.parts * plan.lanes
            assert plan.threads >= plan.lanes
        else:
            # If fewer elements are skipped, a thread may lack its last unit, but no other.
            assert (plan.units - 1) * plan.threads <= -(-columns // SIZE)
        shared = plan.units * plan.threads * SIZE * 4 + plan.rows * 8
        assert shared + 2 * 32 * 4 <= 48 * 1024


def test_rows_that_have_no_plan():
    for columns in (1, 4, 96, 1024, 16384, 16385):
        assert not plans(columns)
    assert {(plan.units, plan.resident) for plan in plans(97)} == {(2, 1024), (3, 512)}


def test_a_grid_that_goes_on_starts_at_the_same_place_of_a_unit():
    for columns in (513, 1023, 1026, 4095):
        for plan in plans(columns):
            for multiprocessors in (1, 3, 132):
                assert plan.grid(2**20, multiprocessors) * columns % SIZE == 0
