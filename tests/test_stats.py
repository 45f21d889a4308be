from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy  # which imports scipy.stats, a second's work, where it is used

from harness import stats
from tests.one_test import one_test


@one_test("confidence", [0.1, 0.9, 0.95, 0.99])
@one_test("n", [*range(1, 40), 100, 101, 999, 3000])
def test_interval_is_the_innermost_pair_with_that_coverage(n: int, confidence: float) -> None:
    # x(k) to x(n-1-k), counted from 0, misses the median if at most k samples fall on one side of it.
    outside = scipy.stats.binom.cdf(np.arange((n + 1) // 2), n, 0.5).tolist()
    covering = [k for k, share in enumerate(outside) if 1 - 2 * share >= confidence]
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
    exact = 1 - 2 * scipy.stats.binom.cdf(7, n, 0.5)
    assert exact == pytest.approx(0.957, abs=0.001)
    assert covered / trials == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / trials))


def test_relative_width() -> None:
    assert stats.relative_width([10.0, 11.0, 12.0, 13.0, 14.0, 18.0]) == 8.0 / 12.5
    assert stats.relative_width([0.1, 0.11, 0.125, 0.125, 0.14, 0.2]) == 0.1 / 0.125
    assert stats.relative_width([1.0] * 5) == math.inf
    assert stats.relative_width([0.0] * 6) == math.inf
    assert stats.relative_width([2.0] * 6) == 0.0


def test_range_over_median() -> None:
    assert stats.range_over_median([10.0, 15.0, 11.0]) == 5.0 / 11.0


FREEDOMS = [*range(1, 41), 59, 99, 199, 999, 1999]


@one_test("freedom", FREEDOMS)
def test_tail_of_students_t(freedom: int) -> None:
    points = [0.0, *np.geomspace(1e-3, 1e8, 100), 1e150, 1e200]
    xs = np.array([*points, *(-x for x in points)])
    found = [stats.t_tail(x, freedom) for x in xs.tolist()]
    np.testing.assert_allclose(found, scipy.stats.t.sf(xs, freedom), rtol=2e-11, atol=1e-290)


def test_tail_near_the_middle_and_without_end() -> None:
    # The density of one degree of freedom is 1 / pi in the middle; scipy is 3e-11 off here.
    assert stats.t_tail(1e-6, 1) == pytest.approx(0.5 - 1e-6 / math.pi, rel=1e-15)
    assert stats.t_tail(math.inf, 9) == 0
    assert stats.t_tail(-math.inf, 9) == 1


@one_test("freedom", FREEDOMS)
def test_quantile_of_students_t(freedom: int) -> None:
    for tail in [1e-100, 1e-12, 1e-9, 1e-6, 0.001 / 12, 0.001, 0.005, 0.009, 0.01, 0.05, 0.3, 0.7, 0.95, 0.9999]:
        assert stats.t_quantile(tail, freedom) == pytest.approx(scipy.stats.t.isf(tail, freedom), rel=1e-11)
    assert stats.t_quantile(0.5, freedom) == 0


def test_what_has_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 degree of freedom, found 0"):
        stats.t_tail(1.0, 0)
    with pytest.raises(ArithmeticError, match="didn't converge"):
        stats.t_tail(math.nan, 1)
    for tail in (0.0, 9e-101, 1.0, 1.5, -0.1):
        with pytest.raises(ValueError, match=f"between 1e-100 and 1, found {tail}$"):
            stats.t_quantile(tail, 3)
    with pytest.raises(ValueError, match="at least 2 values to have an error, found 1"):
        stats.Mean.of([1.0])


@one_test("count", [2, 3, 4, 10, 20, 57])
@one_test("scale", [1e-6, 0.001, 10.0])
def test_bounds_of_a_mean_and_its_test(count: int, scale: float) -> None:
    rng = np.random.default_rng(count)
    for level in (0.001, 0.009, 0.05, 0.3):
        values = rng.normal(-0.01, scale, count)
        mean, limit = stats.Mean.of(values.tolist()), float(rng.normal(-0.01, scale))
        less, greater = (scipy.stats.ttest_1samp(values, limit, alternative=side) for side in ("less", "greater"))
        assert mean.value == pytest.approx(values.mean(), rel=1e-12)
        assert mean.deviation == pytest.approx(values.std(ddof=1), rel=1e-12)
        assert mean.p_below(limit) == pytest.approx(less.pvalue, rel=1e-8)
        assert mean.high(level) == pytest.approx(less.confidence_interval(1 - level).high, rel=1e-9, abs=1e-15)
        assert mean.low(level) == pytest.approx(greater.confidence_interval(1 - level).low, rel=1e-9, abs=1e-15)
        assert (mean.p_below(limit) <= level) == (mean.high(level) <= limit)


def test_values_without_spread_have_a_mean_that_is_known() -> None:
    mean = stats.Mean.of([-0.25] * 4)
    assert mean.low(0.01) == mean.high(0.01) == mean.value == -0.25
    assert [mean.p_below(limit) for limit in (-0.26, -0.25, -0.24)] == [1, 1, 0]


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_the_interval_of_a_mean_is_that_of_the_t_test_of_logarithms_where_there_are_some(count: int) -> None:
    values = np.random.default_rng(count).lognormal(1.0, 0.3, count)
    for given, back in ((values, np.exp), (-values, lambda bound: bound)):
        logs = np.log(given) if given[0] > 0 else given
        exact = scipy.stats.ttest_1samp(logs, 0).confidence_interval(0.95)
        low, high = stats.mean_interval(given.tolist())
        assert (low, high) == pytest.approx((back(exact.low), back(exact.high)), rel=1e-9)
    assert stats.mean_interval([2.0, 2.0]) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize(
    ("values", "are_logarithms"), [((0.2, 0.3), True), ((0.0, 0.3), False), ((-0.5, 0.3), False), ((-0.5, 3), False)]
)
def test_logarithms_are_taken_where_all_values_are_positive(values: tuple[float, ...], are_logarithms: bool) -> None:
    given = np.log(values) if are_logarithms else values
    exact = scipy.stats.ttest_1samp(given, 0).confidence_interval(0.95)
    low, high = (np.exp(bound) if are_logarithms else bound for bound in (exact.low, exact.high))
    assert stats.mean_interval(values) == pytest.approx((low, high), rel=1e-9)
    if not are_logarithms:
        assert stats.Mean.of(values).interval() == pytest.approx((low, high), rel=1e-9)


def closed(ps: list[float], level: float, family: int) -> list[bool]:
    """Holm's method from its definition: rejected is what Bonferroni rejects in every subset of the family."""
    all_ps = [*ps, *([1.0] * (family - len(ps)))]
    subsets = [s for size in range(1, family + 1) for s in itertools.combinations(range(family), size)]
    held = [set(s) for s in subsets if min(all_ps[i] for i in s) > level / len(s)]
    return [not any(index in subset for subset in held) for index in range(len(ps))]


@one_test("family", [1, 2, 3, 5, 7])
def test_holm_is_the_closed_test(family: int) -> None:
    rng = np.random.default_rng(family)
    rejected = 0
    for count in [*range(family + 1)] * 20:
        ps = (0.1 * rng.random(count) ** 2).tolist()
        tested = stats.holm(ps, 0.05, family)
        assert [one.rejected for one in tested] == closed(ps, 0.05, family)
        assert all(one.rejected == (p <= one.level) for one, p in zip(tested, ps, strict=True))
        rejected += sum(one.rejected for one in tested)
    assert rejected > 0


def test_holm_stops_at_the_first_that_is_not_rejected() -> None:
    tested = stats.holm([0.02, 0.012, 0.3, 0.004], 0.05, 5)
    assert [(one.rejected, one.level) for one in tested] == [
        (False, 0.05 / 3),
        (True, 0.05 / 4),
        (False, 0.05 / 3),
        (True, 0.05 / 5),
    ]
    assert stats.holm([0.025, 0.05], 0.05, 2) == [stats.Tested(True, 0.025), stats.Tested(True, 0.05)]
    with pytest.raises(ValueError, match="family of 1 can't have 2 members"):
        stats.holm([0.1, 0.2], 0.05, 1)


@pytest.mark.slow  # gate/test_decision.py has that as many pairs as it says would tell
@one_test("level", [0.001, 0.009, 0.05])
@one_test("ratio", [0.2, 0.5, 1.0, 2.0, 5.0])
def test_count_to_tell_has_the_power_asked_for(level: float, ratio: float) -> None:
    """ratio: of the distance to the deviation."""

    def power(n: int) -> float:
        return float(scipy.stats.nct.sf(scipy.stats.t.isf(level, n - 1), n - 1, ratio * math.sqrt(n)))

    def shift(n: int) -> float:
        return float(scipy.stats.t.isf(level, n - 1) + scipy.stats.t.isf(0.1, n - 1))

    exact = next(n for n in itertools.count(2) if power(n) >= 0.9)
    count = stats.count_to_tell(0.01, 0.01 * ratio, level, 0.9, 1000)
    assert abs(count - exact) <= 2
    assert count == next(n for n in itertools.count(2) if ratio * math.sqrt(n) >= shift(n))


@one_test("level", [0.001, 0.05])
@one_test("power", [0.6, 0.9])
def test_count_to_tell_is_the_first_that_does(level: float, power: float) -> None:
    """By the sum of two quantiles, to which the shift of the noncentral t comes near."""
    counts = np.arange(2, 400)
    sums = scipy.stats.t.isf(level, counts - 1) + scipy.stats.t.isf(1 - power, counts - 1)
    shifts = dict(zip(counts.tolist(), sums.tolist(), strict=True))
    for ratio in np.geomspace(0.25, 5, 40).tolist():
        exact = next(n for n, shift in shifts.items() if ratio * math.sqrt(n) >= shift)
        assert stats.count_to_tell(0.01, 0.01 * ratio, level, power, 1000) == exact


def test_count_to_tell_has_an_end() -> None:
    assert stats.count_to_tell(0.01, 1e-9, 0.01, 0.9, 300) == 300
    assert stats.count_to_tell(0.01, 0.0, 0.01, 0.9, 300) == 300
    assert stats.count_to_tell(0.0, 0.0, 0.01, 0.9, 300) == 300
    assert stats.count_to_tell(0.0, 0.1, 0.01, 0.9, 300) == 2
