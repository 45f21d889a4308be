"""Rule: kernels write results to memory that later kernels of the same call read again."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason
from harness.explain.rules.bytes import MORE, beyond
from harness.explain.words import share, spared

SUMMARY = "a second kernel that reads again what the first wrote"
EFFECT_OF = ()


def judge(known: Known) -> Iterator[Reason]:
    """A reason if there are several kernels, and together they write more than the op's outputs.

    Without a profiler these are the kernels that the variant has compiled: some may not be launched at this shape. So
    how many there are isn't known then, nor what it would save to have one.
    """
    need, found, times = known.work, known.moved, beyond(known)
    names = [kernel.name for kernel in known.major or known.facts]
    if not found or not need.moved or len(names) < 2:
        return
    read, written, source = found
    between = written - need.written
    if written <= MORE * need.written or times <= MORE:
        return
    saves, last = spared(known, known.time, known.time * (1 - 1 / times), f"(1 - 1 / {times:.2f}) of the time")
    who = f"{len(names)} kernels in place of one" if known.kernels else "Perhaps at least two kernels in place of one"
    yield Reason(
        "second_kernel",
        f"{who}: they pass {units.size(between)} through memory, {source}.",
        (
            *_parts(known),
            f"written {units.size(written)} - {units.size(need.written)} of outputs = {units.size(between)}",
            f"moved {units.size(read + written)}, {units.size(need.moved)} needed: {times:.2f} times",
            *([last] if known.kernels else ["counters tell which of them are launched"]),
        ),
        "fuse the kernels, so that what one makes stays in registers or shared memory for the next",
        saves if known.kernels else None,
    )


def _parts(known: Known) -> Iterator[str]:
    if not known.kernels:
        yield f"at least two of these: {', '.join(fact.name for fact in known.facts)}"
    for kernel in known.major:
        bytes_text = "" if known.counted is None else f", read {_size(kernel.read)}, written {_size(kernel.written)}"
        yield f"{kernel.name}: {share(kernel.share)} of the time{bytes_text}"


def _size(value: float | None) -> str:
    return units.size(value or 0.0)
