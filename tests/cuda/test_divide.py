"""The multiplication that stands for a division, against Python's own integers."""

from __future__ import annotations

import random

import pytest

from harness.cuda import fast_divisor


def divided(n: int, divisor: int, bits: int) -> int:
    """What kernels/include/fastdiv.cuh computes, with its wrap-around."""
    multiplier, shift = (part.value for part in fast_divisor(divisor, bits))
    high = (n * multiplier) >> bits
    return int(((high + n) % 2**bits) >> shift)


def edges(divisor: int, limit: int) -> list[int]:
    """Numbers at which a wrong multiplier shows first: around multiples of the divisor, and at the ends."""
    last = (limit - 1) // divisor
    multiples = [k * divisor for k in (0, 1, 2, last // 2, last - 1, last) if k >= 0]
    return [n for m in multiples for n in (m - 1, m, m + 1) if 0 <= n < limit] + [limit - 1]


@pytest.mark.parametrize("bits", [32, 64])
def test_every_small_divisor(bits):
    for divisor in range(1, 2000):
        for n in edges(divisor, 2 ** (bits - 1)):
            assert divided(n, divisor, bits) == n // divisor, (n, divisor)


@pytest.mark.slow  # the next test has every small divisor
@pytest.mark.parametrize("bits", [32, 64])
def test_random_divisors(bits):
    pick = random.Random(0)
    limit = 2 ** (bits - 1)
    for _ in range(3000):
        divisor = min(limit - 1, 1 + pick.getrandbits(pick.randrange(1, bits)))
        for n in (*edges(divisor, limit), pick.randrange(limit)):
            assert divided(n, divisor, bits) == n // divisor, (n, divisor)


@pytest.mark.parametrize("bits", [32, 64])
def test_powers_of_two_and_their_neighbours(bits):
    for exponent in range(bits - 1):
        for divisor in {max(1, 2**exponent + d) for d in (-1, 0, 1)} - {2 ** (bits - 1)}:
            for n in edges(divisor, 2 ** (bits - 1)):
                assert divided(n, divisor, bits) == n // divisor, (n, divisor)


@pytest.mark.parametrize("divisor", [0, -1, 2**31])
def test_divisors_out_of_range_are_refused(divisor):
    with pytest.raises(ValueError, match="divisor"):
        fast_divisor(divisor, 32)
