"""Rule: warps wait until atomics have changed global memory, one after the other where they meet at a few addresses."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason, Seen
from harness.explain.rules.in_flight import idle
from harness.explain.words import above_busy, amount, share, spared

SUMMARY = "atomics of global memory, and whether they meet at a few addresses"
EFFECT_OF = ()
PART = 0.2  # of the requests for global memory; fewer atomics are the one of each block that a good reduction makes
MEETING = 4.0  # times the mean of all slices that the busiest slice of the L2 changes; a hash spreads more addresses


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that makes many atomics, while memory, schedulers and pipes are idle."""
    for kernel in known.major:
        atomics = kernel.get("atomic_requests") or 0.0
        every = atomics + (kernel.get("load_requests") or 0.0) + (kernel.get("store_requests") or 0.0)
        if atomics and atomics >= PART * every and idle(known, kernel):
            yield _reason(known, kernel, atomics, atomics / every)


def _reason(known: Known, kernel: Seen, atomics: float, part: float) -> Reason:
    saves, last = spared(known, kernel.seconds, *above_busy(known, kernel))
    mean, most = kernel.get("atomic_sectors_mean"), kernel.get("atomic_sectors_most")
    times = most / mean if mean and most else 0.0
    meets = ", at a few addresses" if times >= MEETING else ""
    slices = [f"the busiest slice of the L2 changes {amount(most or 0.0)} sectors, {times:.1f} times the mean"]
    return Reason(
        "atomics",
        f"Atomics: {share(part)} of the requests for global memory change it in place{meets}, while memory is "
        f"{share(known.memory_busy(kernel) or 0.0)} busy.",
        (
            f"in {known.label(kernel)}: {amount(atomics * kernel.launches)} requests of warps",
            *(slices if times else ()),
            last,
        ),
        "add up in registers, in a warp by shuffles, or in shared memory first, and make one atomic a block; or let "
        "blocks write partial results, which a second pass adds up",
        saves,
    )
