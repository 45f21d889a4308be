"""Makes the CPU look small, so that limits and cases take no time to measure, and ranks impatient.

It also lets go what functions were before: to compare them takes most of the time of a small case. forging.py notes
them again.

Load it in a measuring process only: it changes modules of the process that loads it.
"""

from __future__ import annotations

from harness import intact, limits, measure, ranks
from harness.devices.cpu import Cpu
from harness.ops import Op

limits._MOST_SECONDS = 0.0  # a first batch of samples is enough
measure._WARM_SECONDS, measure._BATCH_SECONDS = 0.0, 1e-3
ranks._PATIENCE = 0.5  # a rank that fails while other ranks wait in a collective waits no longer for them
Cpu.stream_sizes = (2**18, 2**20)
Cpu.cache_bytes = 2**16  # type: ignore[assignment,method-assign]
intact._remembered.clear()
OP = Op("nothing", "a plug-in must define an op", symbols={})
