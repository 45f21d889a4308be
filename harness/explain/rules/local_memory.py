"""Rule: arrays of threads or spilled registers lie in local memory, which is in the caches and behind them."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain.records import Known, Reason, Seen
from harness.explain.words import amount, share, spared

SUMMARY = "local memory: arrays of threads, spilled registers"
EFFECT_OF = ()
PART = 0.05  # of the sectors of a kernel that must be local
REMEDY = (
    "index arrays of a thread by constants only (unroll the loops), so that they stay in registers; where registers "
    "were spilled, allow more of them"
)


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel with local accesses; without counters, for kernels that have local memory."""
    for kernel in known.major:
        local = kernel.of_a_call("local_sectors")
        every = sum(kernel.of_a_call(name) or 0.0 for name in ("local_sectors", "load_sectors", "store_sectors"))
        if local and local >= PART * every:
            yield _reason(known, kernel, local, every)
    if not known.has_counters and (facts := [fact for fact in known.facts if fact.local]):
        names = " and ".join(fact.name for fact in facts)
        yield Reason(
            "local_memory",
            f"Perhaps local memory: each thread of {names} has arrays or spilled registers there, by the compiler.",
            (
                *(f"{fact.name}: {fact.local} bytes a thread, {fact.registers} registers" for fact in facts),
                "counters tell how often it is used",
            ),
            REMEDY,
        )


def _reason(known: Known, kernel: Seen, local: float, every: float) -> Reason:
    saves, last = spared(known, kernel.seconds, kernel.seconds * local / every, f"{share(local / every)} of it")
    own = kernel.get("local_bytes")
    size = "" if own is None else f", {units.size(own)} a thread"
    return Reason(
        "local_memory",
        f"Local memory: {share(local / every)} of the sectors that the kernel touches are local.",
        (
            f"in {known.label(kernel)}{size}",
            f"{amount(local)} local sectors / {amount(every)} of all loads and stores = {share(local / every)}",
            last,
        ),
        REMEDY,
        saves,
    )
