"""Pure functions on arrays of samples. No clock, no device, nothing of ours."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
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
