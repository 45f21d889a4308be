"""Limits of a machine that are made up, so that no test waits until they are measured."""

from __future__ import annotations

import pytest

from harness.api import timing
from harness.model import Limits, StreamPoint


@pytest.fixture(autouse=True)
def slow_machine(short_timing: None, monkeypatch: pytest.MonkeyPatch) -> Limits:
    """A machine that copies 1 MB/s: whatever is timed here is far above its ceiling, or below a faster one's."""
    points = tuple(StreamPoint(size, size, 2 * size / 1e6, "memcpy", is_copy=True) for size in (2**10, 2**20))
    made = Limits(points)
    monkeypatch.setattr(timing, "machine_limits", lambda _: made)
    return made
