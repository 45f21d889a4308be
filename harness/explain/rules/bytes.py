"""Rule: a case moves more bytes through memory than its op needs."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain._records import Known, Reason
from harness.explain._words import spared

SUMMARY = "bytes moved beyond need"
EFFECT_OF = ("coalescing", "second_kernel", "local_memory", "partial_sectors")
MORE = 1.03  # counters and declared bytes agree within 1.3% for kernels that move what they need


def judge(known: Known) -> Iterator[Reason]:
    """A reason if the bytes that were moved, by counters or else by count, are more than those of the work."""
    need, found = known.work.moved, known.moved
    if not need or not found:
        return
    read, written, source = found
    times = (read + written) / need
    if times <= MORE:
        return
    saves = known.gain(known.time * (1 - 1 / times))
    yield Reason(
        "bytes",
        f"Bytes beyond need: it moves {times:.2f} times the bytes that the op needs, {source}.",
        (
            f"read    {units.size(read)} {source}, needed {units.size(known.work.read)}",
            f"written {units.size(written)} {source}, needed {units.size(known.work.written)}",
            f"together {units.size(read + written)} / {units.size(need)} = {times:.2f}",
            spared(known.time, f"(1 - 1 / {times:.2f}) of the time, down to the ceiling", saves),
        ),
        "read each input once and write each output once: keep what is used again in registers or shared memory, and "
        "fuse passes",
        saves,
    )
