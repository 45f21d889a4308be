"""Rule: the grid leaves multiprocessors idle: it is too small, or its last wave is nearly empty."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness import units
from harness.explain.records import MEMORY_BUSY, Known, Reason, Seen
from harness.explain.words import share, spared

SUMMARY = "waves and tails: grids that leave multiprocessors idle"
EFFECT_OF = ()
IDLE = 0.05  # of the device's time that the grid must leave idle
_LIMITS = ("blocks_by_registers", "blocks_by_shared", "blocks_by_warps", "blocks_by_slots")


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose blocks can't be spread evenly, unless memory is busy all the same."""
    count = known.device.multiprocessors
    for kernel in known.major:
        grid = kernel.get("grid")
        if not grid or not count or (known.memory_busy(kernel) or 0.0) >= MEMORY_BUSY:
            continue
        if grid < count:
            yield _too_small(known, kernel, grid, count)
            continue
        waves, text = _waves(kernel, grid, count)
        if waves >= 1:
            last = share(waves - math.floor(waves))
            verdict = f"A tail: the grid is {waves:.2f} waves, and the last one fills {last} of its places."
            yield from _uneven(known, kernel, waves, verdict, text)
        elif waves:
            each = grid / count
            verdict = f"Uneven blocks: {each:.2f} for a multiprocessor, so that most wait for a few with one more."
            yield from _uneven(
                known, kernel, each, verdict, f"{grid:.0f} blocks / {count} multiprocessors = {each:.2f}"
            )


def _too_small(known: Known, kernel: Seen, grid: float, count: int) -> Reason:
    idle = 1 - grid / count
    saves, last = _spared(known, kernel, idle, f"{share(idle)} of it")
    return Reason(
        "waves",
        f"Too small a grid: {_blocks(grid)} for {count} multiprocessors, so {share(idle)} of the device is idle.",
        (
            f"in {known.label(kernel)}: 1 - {grid:.0f} / {count} = {share(idle)}",
            last,
        ),
        "spread the work over more blocks, at least one for each multiprocessor",
        saves,
    )


def _uneven(known: Known, kernel: Seen, rounds: float, verdict: str, text: str) -> Iterator[Reason]:
    """A reason if so many rounds, of which the last isn't full, leave enough of the device idle."""
    whole = math.ceil(rounds)
    idle = 1 - rounds / whole
    if idle < IDLE:
        return
    text_of_idle = f"1 - {rounds:.2f} / {whole} = {share(idle)}, if all blocks take as long"
    saves, last = _spared(known, kernel, idle, text_of_idle)
    yield Reason(
        "waves",
        verdict,
        (
            f"in {known.label(kernel)}: {text}",
            last,
        ),
        "choose blocks so that the last wave is full, or only the blocks that run at a time, and share the work evenly",
        saves,
    )


def _spared(known: Known, kernel: Seen, idle: float, text: str) -> tuple[float, str]:
    """The share `idle` of the kernel's time, as far as a plain stream of its bytes doesn't take it, and the sum."""
    streaming = known.streaming(kernel) or 0.0
    rest = kernel.seconds - streaming
    if kernel.seconds * idle > rest:
        text = f"{text}; but a plain stream of its bytes takes {units.seconds(streaming)}"
    return spared(known, kernel.seconds, min(kernel.seconds * idle, rest), text)


def _waves(kernel: Seen, grid: float, count: int) -> tuple[float, str]:
    """How often the grid fills the device, and how that was computed; 0 if that isn't known."""
    limits = [value for name in _LIMITS if (value := kernel.get(name))]
    if limits:
        places = min(limits)
        waves = grid / (count * places)
        return waves, f"{grid:.0f} blocks / ({count} multiprocessors x {places:.0f} at a time) = {waves:.2f}"
    waves = kernel.get("waves") or 0.0
    # Profilers round to hundredths, so that what is told as 2.00 may be a little more than two whole waves.
    return (max(1.0, waves - 0.005) if waves >= 1 else waves), f"{waves:.2f} waves, by the profiler"


def _blocks(grid: float) -> str:
    return "1 block" if grid == 1 else f"{grid:.0f} blocks"
