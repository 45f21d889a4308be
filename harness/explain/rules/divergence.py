"""Rule: lanes of a warp take different paths, so that the lanes of one path wait while the other path is taken."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason
from harness.explain.rules.instructions import is_busy
from harness.explain.words import above_stream, share, spared

SUMMARY = "divergence: lanes of a warp that take turns"
EFFECT_OF = ()
LANES = 32
FEW = 24  # lanes of a warp; edges of tiles and the last warp of a row leave more lanes than this on average


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that instructions bound, and whose instructions have few lanes."""
    for kernel in known.major:
        lanes = kernel.get("active_lanes")
        if lanes is None or lanes >= FEW or not is_busy(known, kernel):
            continue
        part = 1 - lanes / LANES
        most, text = above_stream(known, kernel)
        if kernel.seconds * part < most:
            most, text = kernel.seconds * part, f"(1 - {lanes:.1f} / {LANES}) of it"
        saves, last = spared(known, kernel.seconds, most, text)
        yield Reason(
            "divergence",
            f"Divergence: an instruction has {lanes:.1f} of {LANES} lanes on average, and the other lanes wait.",
            (f"in {known.label(kernel)}: {LANES} lanes wait for the longest path, {share(part)} of them idly", last),
            "give the lanes of a warp equal work: sort or bin items by their path or length, choose by a predicated "
            "expression where both sides are short, or let a whole warp do one long item",
            saves,
        )
