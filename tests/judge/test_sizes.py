"""Sizes that nobody knew."""

from __future__ import annotations

import random
from itertools import islice

from harness.judge.sizes import drawn


def first(count: int, seed: int, **sizes: int) -> list[dict[str, int]]:
    return list(islice(drawn(sizes, random.Random(seed)), count))


def test_a_seed_draws_the_same_sizes_again() -> None:
    assert first(20, 1, M=64, N=100) == first(20, 1, M=64, N=100) != first(20, 2, M=64, N=100)


def test_sizes_are_new_and_no_larger_but_for_a_neighbour() -> None:
    found = first(30, 3, M=64, N=100)
    assert {"M": 64, "N": 100} not in found
    assert all(1 <= one["M"] <= 65 and 1 <= one["N"] <= 101 for one in found)
    assert len({tuple(one.values()) for one in found}) == 30


def test_odd_sizes_and_multiples_come() -> None:
    found = first(40, 4, N=1024)
    assert any(one["N"] % 2 for one in found)
    assert all(one["N"] % 64 == 0 for one in found[12:])


def test_a_single_element_ends_as_well() -> None:
    assert first(3, 5, N=1) == first(3, 5, N=1)
    assert first(2, 5) == [{}, {}]
