"""Rule: schedulers or a pipe are busy with instructions while memory is not."""

from __future__ import annotations

from collections.abc import Iterator

from harness import units
from harness.explain._records import Known, Reason, Seen
from harness.explain._words import amount, share, spared
from harness.explain.rules.in_flight import DRAM_IDLE, ISSUE_IDLE
from harness.model import PIPE

SUMMARY = "divisions and other instruction pressure"
EFFECT_OF = ("coalescing", "local_memory")
FULL_PIPE = 0.7  # of a pipe's rate; beyond, its queue makes warps wait


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that issues in most cycles, or fills a pipe, while memory could give more."""
    for kernel in known.major:
        dram, issue = kernel.get("dram_active"), kernel.get("issue_active")
        if dram is None or issue is None or dram >= DRAM_IDLE:
            continue
        pipe, use = _fullest(kernel)
        if issue >= ISSUE_IDLE or use >= FULL_PIPE:
            yield _reason(known, kernel, dram, max(issue, use), pipe if use >= max(issue, FULL_PIPE) else "")


def _reason(known: Known, kernel: Seen, dram: float, busy: float, full: str) -> Reason:
    rest = known.streaming(kernel) or 0.0
    saves = known.gain(kernel.seconds - rest)
    what = f"the pipe '{full}' is {share(busy)} full" if full else f"schedulers issue in {share(busy)} of the cycles"
    return Reason(
        "instructions",
        f"Instructions: {what}, while memory is {share(dram)} busy.",
        (
            f"in {known.label(kernel)}",
            *_counts(known, kernel),
            spared(kernel.seconds, f"{units.seconds(rest)} is what its bytes take as a plain stream", saves),
        ),
        "do fewer instructions for each byte: no divisions (32-bit indexes, one division for quotient and remainder, a "
        "multiplication in its place, or a launch shape that needs none), packs of 16 bytes, cheaper functions",
        saves,
    )


def _counts(known: Known, kernel: Seen) -> Iterator[str]:
    count, words = kernel.get("instructions"), known.work.moved / 4
    if count and words and len(known.kernels) == 1:
        every = count * kernel.launches
        moved = f"{amount(words)} words of 4 bytes that the op moves"
        yield f"{amount(every)} instructions of warps x 32 lanes / {moved} = {every * 32 / words:.1f} a word"
    pipe, use = _fullest(kernel)
    if pipe:
        yield f"fullest pipe: {pipe}, which got {share(use)} of the instructions that it can take"


def _fullest(kernel: Seen) -> tuple[str, float]:
    """The pipe that is used most, and the share of its rate that is used; '' and 0 if no pipe was counted."""
    return max(kernel.beginning(PIPE).items(), key=lambda item: item[1], default=("", 0.0))
