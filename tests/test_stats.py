from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from harness import stats


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [*range(1, 40), 100, 101, 999, 3000])
def test_interval_is_the_innermost_pair_with_that_coverage(n: int, confidence: float) -> None:
    # x(k) to x(n-1-k), counted from 0, misses the median if at most k samples fall on one side of it.
    covering = [k for k in range((n + 1) // 2) if 1 - 2 * binom.cdf(k, n, 0.5) >= confidence]
    expected = (max(covering), n - 1 - max(covering)) if covering else None
    assert stats.median_interval(list(range(n)), confidence) == expected


def test_five_samples_are_too_few_and_six_are_their_range() -> None:
    assert stats.median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert stats.median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]) == (1.0, 6.0)


def test_interval_covers_the_median_of_a_skewed_distribution() -> None:
    rng = np.random.default_rng(20260101)
    trials, n = 4000, 25
    median = math.log(2)  # of an exponential distribution
    covered = 0
    for samples in rng.exponential(size=(trials, n)):
        low, high = stats.median_interval(samples.tolist()) or (math.inf, -math.inf)
        covered += low <= median <= high
    exact = 1 - 2 * binom.cdf(7, n, 0.5)
    assert exact == pytest.approx(0.957, abs=0.001)
    assert covered / trials == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / trials))


def test_relative_width() -> None:
    assert stats.relative_width([10.0, 11.0, 12.0, 13.0, 14.0, 15.0]) == 5.0 / 12.5
    assert stats.relative_width([1.0] * 5) == math.inf
    assert stats.relative_width([0.0] * 6) == math.inf
    assert stats.relative_width([2.0] * 6) == 0.0


def test_range_over_median() -> None:
    assert stats.range_over_median([10.0, 12.0, 11.0]) == 2.0 / 11.0
