"""Rule: a case moves more bytes through memory than its op needs."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import COUNTED, MEMORY_BUSY, Known, Reason
from harness.explain.words import spared

SUMMARY = "bytes moved beyond need"
EFFECT_OF = ("coalescing", "second_kernel", "local_memory", "partial_sectors")
MORE = 1.03  # counters and declared bytes agree within 1.3% for kernels that move what they need


def judge(known: Known) -> Iterator[Reason]:
    """A reason if the bytes that were moved, by counters or else by count, are more than the work's bytes."""
    need, found, times = known.work.moved, known.moved, beyond(known)
    if not found or times <= MORE:
        return
    read, written, source = found
    extra = times * need - need
    saves, last = spared(known, known.time, known.time * (1 - 1 / times), f"(1 - 1 / {times:.2f}) of the time")
    kept = ", so that the L2 keeps the rest" if source == COUNTED and written < known.work.written / MORE else ""
    yield Reason(
        "bytes",
        f"Bytes beyond need: it moves {times:.2f} times the bytes that the op needs, {source}.",
        (
            f"read    {units.size(read)} {source}, needed {units.size(known.work.read)}",
            f"written {units.size(written)} {source}, needed {units.size(known.work.written)}{kept}",
            f"({units.size(need)} needed + {units.size(extra)} beyond need) / {units.size(need)} = {times:.2f}",
            last,
        ),
        "read each input once and write each output once: keep what is used again in registers or shared memory, and "
        "fuse passes",
        saves,
    )


def beyond(known: Known) -> float:
    """The bytes that are moved, over the bytes that the op needs; 1 if that isn't known, or doesn't matter.

    Reads and writes each count for themselves, since writes that stay in the L2 don't make up for what is read twice.
    It doesn't matter where operations bound the work, and memory isn't busy: neither in the call nor in one of its
    kernels.
    """
    need, found = known.work, known.moved
    if not need.moved or not found:
        return 1.0
    read, written, _ = found
    extra = max(0.0, read - need.read) + max(0.0, written - need.written)
    if not extra:
        return 1.0
    busy = max(_share(known, read, written), *(known.memory_busy(kernel) or 0.0 for kernel in known.major), 0.0)
    if known.subject.bound_by_compute and busy < MEMORY_BUSY:
        return 1.0
    return 1 + extra / need.moved


def _share(known: Known, read: float, written: float) -> float:
    """The share of the time that a plain stream of so many bytes takes; 1 if that isn't known."""
    limits = known.subject.limits
    seconds = limits.stream_seconds(round(read), round(written)) if limits else None
    return 1.0 if seconds is None else seconds / known.time
