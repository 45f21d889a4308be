"""A user's program with ranges of the package nvtx: pushed and popped, started and ended, in two domains."""

from __future__ import annotations

import time

import nvtx

for _step in range(3):
    batch = nvtx.start_range("batch")  # ends in the middle of the step
    with nvtx.annotate("step"):
        with nvtx.annotate("forward"):
            for block in ("block 0", "block 1"):
                with nvtx.annotate(block, domain="model"):
                    time.sleep(0.001)
        nvtx.end_range(batch)
        with nvtx.annotate("backward"):
            time.sleep(0.002)
