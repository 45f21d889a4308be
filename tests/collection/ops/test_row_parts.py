"""Parts of rows: each unit has a thread, whose block has few other threads."""

from __future__ import annotations

import pytest

from harness.collection.ops.row_parts import RowParts


@pytest.mark.parametrize("most", [64, 128, 256])
@pytest.mark.parametrize("units", [1, 31, 64, 65, 192, 250, 256, 257, 1000, 2752])
def test_each_unit_has_a_thread_and_few_threads_have_none(units, most):
    parts = RowParts.of(3, units, most)
    assert parts.grid == (parts.blocks, 3)
    assert parts.threads <= most
    assert parts.threads % 32 == 0
    # As in row_part.cuh: threads behind the end do the last unit again.
    done = [min(thread, units - 1) for thread in range(parts.blocks * parts.threads)]
    assert sorted({*done}) == list(range(units))
    assert len(done) - units < 32 * parts.blocks


def test_nothing_has_no_blocks():
    assert RowParts.of(0, 0, 256).grid == (0, 0)
