"""Rule: a kernel has so many barriers that they fill the pipe which does them."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason
from harness.explain.rules.instructions import does_barriers
from harness.explain.words import above_stream, share, spared
from harness.model import STALL

SUMMARY = "barriers that fill a pipe"
EFFECT_OF = ("conflicts", "local_memory")
REMEDY = "reduce in a warp by shuffles first, take smaller blocks, or give a block's warps equal work"


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose barriers fill a pipe, while memory could give more."""
    for kernel in known.major:
        if not does_barriers(kernel) or not known.memory_idle(kernel):
            continue
        pipe, use = kernel.fullest
        part = kernel.get(f"{STALL}barrier") or 0.0
        saves, last = spared(known, kernel.seconds, *above_stream(known, kernel))
        yield Reason(
            "barriers",
            f"Barriers: the pipe that does them, '{pipe}', is {share(use)} full, while memory is "
            f"{share(known.memory_busy(kernel) or 0.0)} busy.",
            (f"in {known.label(kernel)}: warps wait at barriers in {share(part)} of their time", last),
            f"have fewer barriers: {REMEDY}",
            saves,
        )
