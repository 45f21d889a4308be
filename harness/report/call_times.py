"""Where tables and plots show the time of a call without a graph beside the device time."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model import Scenario
from harness.report.frame import Line

LISTS = "list"
"""The tag of scenarios whose cases are lists of tensors: a variant may launch a kernel for each tensor."""
_WAITS = 1.2
"""A call that takes more than this many times its device time waits for the host, which launches its kernels."""


def matter(scenario: Scenario, lines: Sequence[Line]) -> bool:
    """Whether call times are shown: for lists of tensors, and where more than half of the cases wait for the host."""
    times = [(line.result.time, line.result.call_time) for line in lines]
    ratios = [call / time for time, call in times if time and call]
    waiting = sum(ratio > _WAITS for ratio in ratios)
    return bool(ratios) and (LISTS in scenario.tags or 2 * waiting > len(ratios))
