"""A machine whose limits and cache are made up: no test waits for limits, and few sets of buffers are enough."""

from __future__ import annotations

import pytest

from harness.api import timing
from harness.devices.cpu import Cpu
from harness.model import Limits, StreamPoint


@pytest.fixture(autouse=True)
def slow_machine(short_timing: None, monkeypatch: pytest.MonkeyPatch) -> Limits:
    """A machine that copies 1 MB/s: whatever is timed here is far above its ceiling, or below a faster one's."""
    points = tuple(StreamPoint(size, size, 2 * size / 1e6, "memcpy", is_copy=True) for size in (2**10, 2**20))
    made = Limits(points)
    monkeypatch.setattr(timing, "machine_limits", lambda _: made)
    monkeypatch.setattr(Cpu, "cache_bytes", 2**16)
    return made
