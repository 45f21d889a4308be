"""Places that are set apart keep their order, and move no farther than they must."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.report.spreading import apart


def test_places_with_room_stay_and_near_ones_are_set_apart() -> None:
    assert apart([2, 5, 8], 0, 10, 1) == [2, 5, 8]
    moved = apart([2, 5.1, 5.2, 8], 0, 10, 1)
    assert moved == pytest.approx([2, 5.1, 6.1, 8])


def test_what_stands_at_an_end_is_moved_inside() -> None:
    assert apart([0, 10], 0, 10, 1) == [0.5, 9.5]
    assert apart([9.7, 9.8, 9.9], 0, 10, 1) == pytest.approx([7.5, 8.5, 9.5])
    assert apart([], 0, 10, 1) == []


def test_without_room_all_are_equally_far_from_each_other() -> None:
    moved = apart([5.0] * 20, 0, 10, 1)
    assert all(after - before == pytest.approx(0.5) for before, after in pairwise(moved))
    assert 0 < moved[0] < moved[-1] < 10
