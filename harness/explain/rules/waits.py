"""Rule: warps wait for something that the other rules have no figure of: barriers, queues, the next instruction."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason
from harness.explain.rules.barriers import REMEDY
from harness.explain.rules.in_flight import idle
from harness.explain.words import above_busy, share, spared
from harness.model import STALL

SUMMARY = "what else warps wait for: barriers, queues, instructions"
EFFECT_OF = (
    "atomics",
    "coalescing",
    "conflicts",
    "local_memory",
    "occupancy",
    "in_flight",
    "waves",
    "second_kernel",
    "bytes",
)
MUCH = 0.3  # of warps' time; several waits of less each are the usual mix of a kernel that is bound by nothing else
_WAITS = {
    "barrier": ("wait at barriers for other warps of their block", REMEDY),
    "membar": ("wait at memory fences", "fence less often, or for a smaller scope"),
    "lg_throttle": ("wait to queue loads and stores", "make fewer and wider accesses: packs of 16 bytes"),
    "mio_throttle": ("wait to queue accesses of shared memory", "make fewer and wider accesses of shared memory"),
    "short_scoreboard": ("wait for shared memory", "keep in registers what shared memory needn't hold"),
    "no_instruction": ("wait for instructions to be fetched", "unroll less, so that the loop stays in the cache"),
}


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel whose warps wait much for one of these, while memory and schedulers are idle."""
    for kernel in known.major:
        if not idle(known, kernel):
            continue
        stalls = {name: value for name, value in kernel.beginning(STALL).items() if name in _WAITS}
        name, part = max(stalls.items(), key=lambda item: item[1], default=("", 0.0))
        if part < MUCH:
            continue
        what, remedy = _WAITS[name]
        most, text = above_busy(known, kernel)
        saves, last = spared(
            known, kernel.seconds, min(kernel.seconds * part, most), f"{share(part)} of it, and {text}"
        )
        memory = share(known.memory_busy(kernel) or 0.0)
        yield Reason(
            "waits",
            f"Waits: warps {what} in {share(part)} of their time, while memory is {memory} busy.",
            (f"in {known.label(kernel)}: {STALL}{name} is {share(part)}", last),
            remedy,
            saves,
        )
