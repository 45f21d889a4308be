"""How fast a pipeline should be, by the rates of its stages, each alone: the arithmetic of rows O3 and O4."""

from __future__ import annotations

from collections.abc import Mapping

Rates = Mapping[str, float]
"""Images a second of each stage alone, by its name."""


def with_one_buffer(rates: Rates) -> float:
    """One batch is on its way at a time, so the times of all stages add up: 1 / (1/r1 + 1/r2 + ...)."""
    return 1 / sum(1 / rate for rate in rates.values())


def with_two_buffers(rates: Rates) -> float:
    """All stages work at a time, so the slowest one sets the pace: the least rate."""
    return min(rates.values())


def expected(rates: Rates, *, overlapping: bool) -> float:
    """Images a second of the whole pipeline."""
    return with_two_buffers(rates) if overlapping else with_one_buffer(rates)


def slowest(rates: Rates) -> str:
    """The stage with the least rate, which limits the whole."""
    return min(rates, key=lambda name: rates[name])


def gain(rates: Rates, name: str, *, overlapping: bool) -> float:
    """How much faster the whole should be if the stage of this name were twice as fast."""
    faster = {**rates, name: 2 * rates[name]}
    return expected(faster, overlapping=overlapping) / expected(rates, overlapping=overlapping)
