"""Sizes that a candidate hasn't seen: drawn from a seed that is given when it is judged."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping

_PLACES = 16
"""Many references need sizes that are multiples of something; a size may be cut into so many parts."""


def drawn(sizes: Mapping[str, int], rng: random.Random) -> Iterator[dict[str, int]]:
    """Sizes near or below the given ones, without end: first any numbers, then multiples of what divides them.

    All together they have no more elements than the given sizes, but for a neighbour of one size.
    """
    known = {tuple(sizes.values())}
    tries = 0
    while True:
        tries += 1
        made = {name: _one(size, rng, coarse=tries > 8) for name, size in sizes.items()}
        # Where a reference takes no other number for some of them, as an index does, one after the other is varied.
        if tries % 4 == 0 and sizes:
            kept = rng.choice(list(sizes))
            made = {name: made[name] if name == kept else size for name, size in sizes.items()}
        if tuple(made.values()) not in known or tries % 64 == 0:
            known.add(tuple(made.values()))
            yield made


def _one(size: int, rng: random.Random, *, coarse: bool) -> int:
    """Another size: 1, a neighbour, or anything between. coarse: a multiple of a power of two that divides the size."""
    size = max(size, 1)
    if coarse:
        part = max(math.gcd(size, 2**20) // _PLACES, 1)
        return part * rng.randint(1, size // part)
    # By logarithms, so that small sizes come as often as large ones.
    between = round(math.exp(rng.uniform(0.0, math.log(size))))
    return max(1, rng.choice([1, size - 1, size + 1, between, between, between | 1, rng.randint(1, size)]))
