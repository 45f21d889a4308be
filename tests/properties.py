"""How many examples property tests try: few in `make test`, many where HYPOTHESIS_EXAMPLES says so."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

bounded = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "60")),
    deadline=None,
    derandomize="HYPOTHESIS_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
"""Decorator of a property test. Without a number from outside the examples are the same at each run."""
