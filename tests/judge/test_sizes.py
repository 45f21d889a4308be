"""Sizes that nobody knew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice

import pytest

from harness.judge import sizes
from harness.judge.sizes import drawn
from tests.one_test import one_test


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


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_no_size_is_less_than_one_element(size):
    """Integers that are no sizes, such as the number of a dimension, are drawn as well."""
    assert {one["N"] for seed in range(20) for one in first(12, seed, N=size)} == {1, 2}
    rng = random.Random(1)
    assert {sizes._one(size, rng, coarse=True) for _ in range(20)} == {1}


def share(size: int, low: int, high: int, odd: bool = False) -> float:
    """The share of 5000 sizes that lie between two bounds, both inclusive."""
    rng = random.Random(1)
    every = [sizes._one(size, rng, coarse=False) for _ in range(5000)]
    return sum(low <= one <= high and one % 2 >= odd for one in every) / len(every)


def test_sizes_at_which_kernels_break_come_often():
    """Seven sizes are drawn from: 1, the neighbours, two between, an odd one between, and one by chance."""
    n = 2**20
    assert share(n, 1, 1) == pytest.approx(1 / 7, abs=0.03)
    assert share(n, n - 1, n - 1) == pytest.approx(1 / 7, abs=0.02)
    assert share(n, n + 1, n + 1) == pytest.approx(1 / 7, abs=0.02)
    assert share(n, 2, 2**10) == pytest.approx(3 / 7 / 2, abs=0.02), "by logarithms"
    assert share(n, 2, 2) > 0
    assert share(n, 2**19, n - 2) == pytest.approx(3 / 7 / 20 + 1 / 7 / 2, abs=0.02)
    assert share(n, 1, n + 1, odd=True) == pytest.approx(1 - (2 + 1) / 7 / 2, abs=0.02)


@one_test(("size", "part"), [(2**22, 2**16), (3 * 2**10, 2**6), (99, 1), (24, 1), (32, 2)])
def test_a_coarse_size_is_a_multiple_of_a_sixteenth_of_what_divides_it(size, part):
    rng = random.Random(1)
    every = {sizes._one(size, rng, coarse=True) for _ in range(2000)}
    assert every == {*range(part, size + 1, part)}


def test_eight_tries_are_of_any_size_and_every_fourth_changes_one_size(monkeypatch):
    asked: list[bool] = []
    other: Iterator[int] = count(1000)

    def one(_: int, rng: random.Random, *, coarse: bool) -> int:
        asked.append(coarse)
        return next(other)

    monkeypatch.setattr(sizes, "_one", one)
    found = first(12, 1, M=64, N=100)
    assert asked == [False] * 16 + [True] * 8
    kept = [sum(one[name] == size for name, size in (("M", 64), ("N", 100))) for one in found]
    assert kept == [0, 0, 0, 1] * 3


def test_where_no_other_size_is_found_the_same_one_comes_after_64_tries(monkeypatch):
    made = count(1)
    monkeypatch.setattr(sizes, "_one", lambda size, *_, **__: (next(made), size)[1])
    found = drawn({"N": 5}, random.Random(1))
    assert [next(found), next(found)] == [{"N": 5}, {"N": 5}]
    assert next(made) == 2 * 64 + 1
