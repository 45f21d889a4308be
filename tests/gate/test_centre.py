"""What pairs scatter around: the trimmed mean against scipy, and both means together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy  # which imports scipy.stats, a second's work, where it is used

from harness import stats
from harness.gate.centre import LEAST_TRIMMED, Centre, TrimmedMean
from harness.stats import Mean
from tests.one_test import one_test


@one_test("count", [5, 9, 10, 20, 23, 40])
def test_the_trimmed_mean_and_its_bounds_are_scipys(count: int) -> None:
    values = np.random.default_rng(count).standard_t(2, count)
    found = TrimmedMean.of(values.tolist())
    assert found.value == pytest.approx(scipy.stats.trim_mean(values, 0.2), rel=1e-12)
    assert found.low(0.01) == pytest.approx(2 * found.value - found.high(0.01), rel=1e-9)
    for limit in (found.value - 0.1, found.value + 0.3, found.value + 1.0):
        # Yuen's test of two samples, of which one is the limit without any spread.
        test = scipy.stats.ttest_ind(values, [limit] * 10, equal_var=False, trim=0.2, alternative="less")
        assert found.p_below(limit) == pytest.approx(test.pvalue, rel=1e-9)
        assert found.high(test.pvalue) == pytest.approx(limit, rel=1e-9)


def test_a_trimmed_mean_stands_a_fifth_of_outliers_at_either_end() -> None:
    calm = [0.001 * (-1) ** index for index in range(20)]
    wild = [*calm[:16], 9.0, 8.0, 7.0, 6.0]
    assert abs(TrimmedMean.of(wild).value) < 0.001
    assert TrimmedMean.of(wild).high(0.01) < 0.01
    assert Mean.of(wild).high(0.01) > 1
    with pytest.raises(ValueError, match="at least 5"):
        TrimmedMean.of(calm[:4])


def test_equal_values_are_known_exactly() -> None:
    found = TrimmedMean.of([0.5] * 20)
    assert (found.low(0.01), found.high(0.01), found.p_below(0.6), found.p_below(0.5)) == (0.5, 0.5, 0.0, 1.0)


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_either_mean_decides_at_half_of_the_level(scale: float) -> None:
    values = np.random.default_rng(3).normal(0, 1, 30).tolist()
    values[0] *= scale * 1e3
    found, mean, trimmed = Centre.of(values), Mean.of(values), TrimmedMean.of(values)
    assert found.high(0.01) == min(mean.high(0.005), trimmed.high(0.005))
    assert found.low(0.05) == max(mean.low(0.025), trimmed.low(0.025))
    assert found.p_below(0.3) == pytest.approx(2 * min(mean.p_below(0.3), trimmed.p_below(0.3)))
    for level in (0.001, 0.01, 0.05):
        assert (found.p_below(found.high(level) * (1 + 1e-6)) <= level) or found.high(level) < 0
    best = mean if mean.error < trimmed.error else trimmed
    assert (found.value, found.best.error) == (best.value, best.error)
    assert found.p_below(min(mean.value, trimmed.value) - 100 * max(mean.error, trimmed.error)) == 1.0


def test_values_that_show_the_side_of_a_limit_are_counted_by_the_better_mean_at_half_of_the_level() -> None:
    found = Centre.of(np.random.default_rng(3).normal(0, 1, 30).tolist())
    deviation = found.best.deviation
    wanted = stats.count_to_tell(deviation, deviation / 4, 0.025, 0.9, 640)
    assert wanted < stats.count_to_tell(deviation, deviation / 4, 0.02, 0.9, 640) < 640
    for limit in (found.value - deviation / 4, found.value + deviation / 4):
        assert found.count_to_tell(limit, 0.05, 0.9, 640) == wanted


def test_few_values_have_their_mean_at_the_whole_level() -> None:
    """Eight of ten pairs may be slow by chance where half of the processes are: their middle would seem sure."""
    values = [*[-0.015] * 8, 0.0, 0.0]
    found = Centre.of(values)
    assert found.means == (Mean.of(values),)
    assert found.high(0.001) > -0.01
    assert TrimmedMean.of(values).high(0.001) < -0.01
    assert [len(Centre.of(values[:1] * count).means) for count in (LEAST_TRIMMED - 1, LEAST_TRIMMED)] == [1, 2]


def test_outliers_and_two_groups_leave_the_error_rate_as_asked_for() -> None:
    """Changes around the limit itself: a bound lies beyond it no more often than its level, whatever the noise is."""
    draw, level = np.random.default_rng(11), 0.05
    of_processes = {
        "outliers": lambda size: np.log1p(draw.uniform(0.1, 1, size)) * (draw.random(size) < 0.03),
        "two groups": lambda size: 0.015 * (draw.random(size) < 0.5),
        "heavy": lambda size: 0.002 * draw.standard_t(2, size),
    }
    for name, make in of_processes.items():
        changes = make((2000, 20)) - make((2000, 20)) + draw.normal(0, 5e-4, (2000, 20))
        beyond = np.mean([Centre.of(row).high(level) < 0 for row in changes.tolist()])
        assert beyond <= level + 3 * math.sqrt(level / 2000), name
