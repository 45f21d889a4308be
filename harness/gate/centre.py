"""What the pairs of a case scatter around, in spite of a few pairs that are far off: the estimate of the gate.

A pair differs by chance as often upwards as downwards, since both of its processes are drawn alike. So its changes
scatter evenly around the true change, and the mean of the middle changes is as right as the mean of all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness.stats import Mean, count_to_tell, t_quantile, t_tail

_FIFTH = 5
LEAST_TRIMMED = 20
"""Fewer values may lie in one of two groups by chance, all of the middle of them, and would seem sure then."""


@dataclass(frozen=True, slots=True)
class TrimmedMean(Mean):
    """Mean of the middle three fifths of `count` independent values, its error, and its bounds by Student's t.

    The error is from the values with the outer fifths moved to the innermost value that is left (Tukey and McLaughlin,
    Sankhya A 25, 1963). Its degrees of freedom are one less than there are values in the middle.
    """

    @classmethod
    def of(cls, values: Sequence[float]) -> TrimmedMean:
        """The trimmed mean of at least five values. Raises ValueError for fewer."""
        count, cut = len(values), len(values) // _FIFTH
        if count < _FIFTH:
            raise ValueError(f"a trimmed mean needs at least {_FIFTH} values, found {count}")
        middle = sorted(values)[cut : count - cut]
        moved = [*[middle[0]] * cut, *middle, *[middle[-1]] * cut]
        mean = statistics.fmean(moved)
        squares = math.fsum((value - mean) ** 2 for value in moved)
        return cls(statistics.fmean(middle), math.sqrt(squares / (len(middle) * (len(middle) - 1))), count)

    @property
    def _freedom(self) -> int:
        return self.count - 2 * (self.count // _FIFTH) - 1

    def low(self, level: float) -> float:
        """The same as `Mean.low`."""
        return self.value - t_quantile(level, self._freedom) * self.error

    def high(self, level: float) -> float:
        """The same as `Mean.high`."""
        return self.value + t_quantile(level, self._freedom) * self.error

    def p_below(self, limit: float) -> float:
        """The same as `Mean.p_below`."""
        if self.error == 0:
            return 0.0 if self.value < limit else 1.0
        return t_tail((limit - self.value) / self.error, self._freedom)


@dataclass(frozen=True, slots=True)
class Centre:
    """What independent values scatter evenly around, by their mean and their trimmed mean, each at half of a level.

    Either may decide. So neither a few values that are far off nor values in two groups prevent a decision, and the
    chance of an error is at most the sum of both. Fewer than LEAST_TRIMMED values have their mean alone.
    """

    means: tuple[Mean, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Centre:
        """The centre of at least two values. Raises ValueError for fewer."""
        mean = Mean.of(values)
        return cls((mean, TrimmedMean.of(values)) if len(values) >= LEAST_TRIMMED else (mean,))

    @property
    def best(self) -> Mean:
        """The mean with the smaller error."""
        return min(self.means, key=lambda mean: mean.error)

    @property
    def value(self) -> float:
        return self.best.value

    @property
    def count(self) -> int:
        return self.best.count

    def low(self, level: float) -> float:
        """One-sided lower bound: a true centre below it gives such a bound with a probability of at most `level`."""
        return max(mean.low(level / len(self.means)) for mean in self.means)

    def high(self, level: float) -> float:
        """One-sided upper bound: a true centre above it gives such a bound with a probability of at most `level`."""
        return min(mean.high(level / len(self.means)) for mean in self.means)

    def p_below(self, limit: float) -> float:
        """One-sided p of the hypothesis that the centre is `limit` or more: small speaks for a smaller centre.

        p_below(limit) <= level exactly where high(level) <= limit.
        """
        return min(1.0, len(self.means) * min(mean.p_below(limit) for mean in self.means))

    def count_to_tell(self, limit: float, level: float, power: float, most: int) -> int:
        """About how many such values show on which side of the limit the centre lies; at most `most`."""
        return count_to_tell(self.best.deviation, abs(self.value - limit), level / 2, power, most)
