"""How harness 0.2 decided: by the mean of all pairs, as if the pairs of a run shared nothing. For comparison alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from harness.gate import centre, looks

_QUARTILE = statistics.NormalDist().inv_cdf(0.75)


@contextmanager
def rule_before() -> Iterator[None]:
    """In this context the gate's decisions are as they were: Student's t alone, two looks at 0.1% and 0.9%."""
    with patch.object(centre, "LEAST_TRIMMED", math.inf), patch.object(looks, "LOOK_ALPHAS", (0.001, 0.009)):
        yield


def noise_as_before(means: Sequence[float]) -> float | None:
    """The noise that blocks gave: the largest, at most three robust standard deviations."""
    if not means:
        return None
    differences = [abs(mean) for mean in means]
    return -math.expm1(-min(max(differences), 3 * statistics.median(differences) / _QUARTILE))
