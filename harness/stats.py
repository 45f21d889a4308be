"""Pure functions on samples: no clock, no device, no other module of the harness."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Distribution-free confidence interval of the median, between two order statistics.

    The rank of the median among n samples is binomial(n, 1/2); the interval takes the innermost pair of order
    statistics that covers it with at least `confidence`. None if n is too small for any pair (below 6 at 95%).
    """
    low = _lower_rank(len(samples), confidence)
    if low is None:
        return None
    ordered = sorted(samples)
    return ordered[low], ordered[len(ordered) - 1 - low]


def relative_width(samples: Sequence[float], confidence: float = 0.95) -> float:
    """Width of the median's interval over the median; infinite while there are too few samples."""
    interval = median_interval(samples, confidence)
    if interval is None:
        return math.inf
    middle = statistics.median(samples)
    return (interval[1] - interval[0]) / middle if middle > 0 else math.inf


def range_over_median(values: Sequence[float]) -> float:
    """(max - min) / median: how far apart a few medians of separate processes lie."""
    return (max(values) - min(values)) / statistics.median(values)


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean of `count` independent values, its standard error, and its bounds by Student's t.

    Where all values are equal (error 0), the mean is known exactly, and its bounds are the mean itself.
    """

    value: float
    error: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of at least two values. Raises ValueError for fewer, which have no error."""
        count = len(values)
        if count < 2:
            raise ValueError(f"a mean needs at least 2 values to have an error, found {count}")
        mean = statistics.fmean(values)
        squares = math.fsum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(squares / (count - 1) / count), count)

    @property
    def deviation(self) -> float:
        """Standard deviation of one value."""
        return self.error * math.sqrt(self.count)

    def low(self, level: float) -> float:
        """One-sided lower bound: true means below it give such a bound with a probability of at most `level`."""
        return self.value - t_quantile(level, self.count - 1) * self.error

    def high(self, level: float) -> float:
        """One-sided upper bound: true means above it give such a bound with a probability of at most `level`."""
        return self.value + t_quantile(level, self.count - 1) * self.error

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval of the true mean."""
        tail = (1 - confidence) / 2
        return self.low(tail), self.high(tail)

    def p_below(self, limit: float) -> float:
        """One-sided p of the hypothesis that the true mean is `limit` or more: small speaks for a smaller mean.

        p_below(limit) <= level exactly where high(level) <= limit.
        """
        if self.error == 0:
            return 0.0 if self.value < limit else 1.0
        return t_tail((limit - self.value) / self.error, self.count - 1)


def t_tail(t: float, freedom: int) -> float:
    """P(T > t) of Student's t with `freedom` degrees of freedom; its relative error is small even where it is tiny."""
    if freedom < 1:
        raise ValueError(f"Student's t has at least 1 degree of freedom, found {freedom}")
    # P(|T| > t) is the regularised incomplete beta function at this x.
    x = freedom / (freedom + t * t)
    y = 1 / (1 + freedom / (t * t)) if t * t else 0.0
    both = _incomplete_beta(freedom / 2, 0.5, x, y)
    return both / 2 if t > 0 else 1 - both / 2


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: int) -> float:
    """The t that Student's t exceeds with probability `tail`: 1.645 for 0.05 and many degrees of freedom."""
    if not 1e-100 <= tail < 1:
        raise ValueError(f"a tail's probability lies between 1e-100 and 1, found {tail}")
    if tail > 0.5:
        return -t_quantile(1 - tail, freedom)
    # The tail is convex from 0 on, so Newton's method approaches from the left and never goes past the solution.
    t, step = 0.0, math.inf
    while step > 1e-14 * t:
        step = (t_tail(t, freedom) - tail) / _t_density(t, freedom)
        t += step
    return t


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval, by Student's t, of what at least two independent values scatter around.

    Of positive values their logarithms are taken, since times and ratios of times scatter by factors.
    """
    if min(values) <= 0:
        return Mean.of(values).interval(confidence)
    low, high = Mean.of([math.log(value) for value in values]).interval(confidence)
    return math.exp(low), math.exp(high)


@dataclass(frozen=True, slots=True)
class Tested:
    """What Holm's method says of one hypothesis: whether it is rejected, and the level that its p was compared with."""

    rejected: bool
    level: float


def holm(ps: Sequence[float], level: float, family: int) -> list[Tested]:
    """Holm's step-down method over a family of hypotheses, for the hypotheses whose p is in `ps`, in their order.

    The chance to reject any true hypothesis of the family is at most `level`, however the hypotheses depend on each
    other. The smallest p is compared with level / family, the next with level / (family - 1), and so on up to the first
    that isn't rejected. All later hypotheses are compared with its level, so that rejected means p <= level for each.
    """
    if family < len(ps):
        raise ValueError(f"a family of {family} can't have {len(ps)} members")
    tested = [Tested(False, level)] * len(ps)
    rejecting, step = True, level
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        if rejecting:
            step = level / (family - rank)
            rejecting = ps[index] <= step
        tested[index] = Tested(rejecting, step)
    return tested


def count_to_tell(deviation: float, distance: float, level: float, power: float, most: int) -> int:
    """How many values a one-sided t-test needs to see that the mean lies `distance` from the limit; at most `most`.

    deviation: standard deviation of one value. level: the level of the test. power: the chance to see the distance. The
    shift of the noncentral t is taken as a sum of two quantiles, which is right to a value or two.
    """
    if distance == 0:
        return most
    # The normal distribution, whose quantiles are smaller, says where to begin.
    normal = -statistics.NormalDist().inv_cdf(level) - statistics.NormalDist().inv_cdf(1 - power)
    ratio = deviation / distance
    count = min(max(2, math.ceil(min(normal * ratio, math.sqrt(most)) ** 2)), most)
    while count < most and (_shift(count, level, power) * ratio) ** 2 > count:
        count += 1
    return count


def _shift(count: int, level: float, power: float) -> float:
    return t_quantile(level, count - 1) + t_quantile(1 - power, count - 1)


def _t_density(t: float, freedom: int) -> float:
    middle = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(middle - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """Regularised incomplete beta function I_x(a, b); y = 1 - x, given apart because it may be tiny."""
    if x == 0 or y == 0:
        return 0.0 if x == 0 else 1.0
    # The continued fraction converges quickly on this side of the mean; the other side follows by symmetry.
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, y, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    return math.exp(log_front) / (a * _beta_fraction(a, b, x))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function, by Lentz's method."""
    fraction = c = 1.0
    d = 0.0
    for term in range(1, 10_000):
        m = term // 2
        if term % 2:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + numerator * d)
        c = 1 + numerator / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            return fraction
    raise ArithmeticError(f"the incomplete beta function didn't converge at {a=}, {b=}, {x=}")


@lru_cache(maxsize=4096)
def _lower_rank(n: int, confidence: float) -> int | None:
    """Largest k (from 0) for which order statistics k and n-1-k cover the median with the confidence asked for."""
    tail = (1 - confidence) / 2
    cumulative = 0.0
    best = None
    for k in range((n + 1) // 2):
        # lgamma keeps the binomial coefficient finite for thousands of samples.
        log_term = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)
        cumulative += math.exp(log_term)
        if cumulative > tail:
            break
        best = k
    return best
