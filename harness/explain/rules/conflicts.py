"""Rule: lanes of a warp access the same bank of shared memory one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason
from harness.explain.words import amount, share, spared

SUMMARY = "bank conflicts of shared memory"
EFFECT_OF = ()
SHARE = 0.1  # of the cycles of shared memory; below, conflicts come from a few accesses at the edges of tiles
PART = 0.05  # of the kernel's time that the cycles of conflicts must take


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose conflicts take a part of the time. Shared memory does one wavefront a cycle."""
    for kernel in known.major:
        conflicts, wavefronts = (kernel.of_a_call(f"shared_{name}") for name in ("conflicts", "wavefronts"))
        clock, count = kernel.get("clock") or known.device.max_sm_clock_hz, known.device.multiprocessors
        if not conflicts or not wavefronts or not clock or not count or conflicts < SHARE * wavefronts:
            continue
        lost = conflicts / (count * clock)
        if lost < PART * kernel.seconds:
            continue
        rest = kernel.seconds - (known.streaming(kernel) or 0.0)
        text = "all conflicts, as if nothing hid them" if lost <= rest else "all but a plain stream of its bytes"
        saves, last = spared(known, kernel.seconds, min(lost, rest), text)
        ideal = wavefronts - conflicts
        times = f"{wavefronts / ideal:.1f} times the cycles that it needs" if ideal > 0 else "nothing but conflicts"
        yield Reason(
            "conflicts",
            f"Bank conflicts: shared memory takes {times}, {share(lost / kernel.seconds)} of the kernel's time.",
            (
                f"in {known.label(kernel)}: {amount(wavefronts)} wavefronts, {amount(conflicts)} of them by conflicts",
                f"{amount(conflicts)} cycles / ({count} x {clock / 1e6:.0f} MHz) = {units.seconds(lost)}",
                last,
            ),
            "pad the rows of a tile by one element, or permute its columns by row (a swizzle)",
            saves,
        )
