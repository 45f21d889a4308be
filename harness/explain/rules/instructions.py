"""Rule: schedulers or a pipe are busy with instructions while memory is not."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason, Seen
from harness.explain.rules.in_flight import FULL_PIPE, ISSUE_IDLE, WAIT, WAITING
from harness.explain.words import above_stream, amount, share, spared
from harness.model import STALL

SUMMARY = "divisions and other instruction pressure"
EFFECT_OF = ("coalescing", "local_memory", "divergence", "double", "atomics")
ALONE = 0.6  # of the cycles; schedulers that issue so often are what bounds a kernel whose warps don't wait for memory
READY = ("selected", "not_selected", "math_pipe_throttle", "dispatch_stall")
"""Where warps spend their time that have all they need, and wait for their turn, or for a pipe, at most."""
AT_BARRIERS = 0.1
"""The share of warps' time at barriers from which on barriers, not branches, are what fills the pipe 'adu'."""
MOSTLY, OFTEN = 0.5, 0.55
"""Shares of warps' time, and of the cycles: warps that are ready so often, and issue so often, are more than schedulers
or pipes can serve."""
_GENERAL = (
    "do fewer instructions for each byte: no divisions (32-bit indexes, one division for quotient and remainder, a "
    "multiplication in its place, or a launch shape that needs none), packs of 16 bytes, cheaper functions"
)
_INDEXES = "do less for indexes: 32 bits, no divisions, steps of pointers in place of products; packs of 16 bytes"
_REMEDIES = {
    "lsu": "make fewer and wider accesses: packs of 16 bytes",
    "xu": "take cheaper functions and no divisions: approximations, a multiplication by what is known ahead",
    "fp64": "compute in float32 where that is exact enough",
    "adu": "branch less, and index no constants by what differs between lanes",
    "alu": _INDEXES,
    "fma": _INDEXES,
}
_OPERATIONS = ("fma", "fp16", "fp64", "fp32")
"""Begin the names of pipes that do the operations of ops that compute bounds, besides the pipes of tensor cores."""


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that issues in most cycles, or fills a pipe, while memory could give more."""
    for kernel in known.major:
        if not is_busy(known, kernel) or does_barriers(kernel):
            continue
        full = _full(kernel)
        if full and _does_the_op(known, full):
            yield _operations(known, kernel, full, kernel.fullest[1])
        else:
            yield _reason(known, kernel, kernel.fullest[1] if full else kernel.get("issue_active") or 0.0, full)


def is_busy(known: Known, kernel: Seen) -> bool:
    """Whether instructions bound the kernel: its schedulers or a pipe are busy, and memory isn't."""
    issue = kernel.get("issue_active")
    if issue is None or not known.memory_idle(kernel):
        return False
    waiting = (kernel.get(WAIT) or 0.0) >= WAITING
    return bool(_full(kernel)) or issue >= ISSUE_IDLE or _ready(kernel, issue) or (issue >= ALONE and not waiting)


def does_barriers(kernel: Seen) -> bool:
    """Whether barriers fill the pipe that does barriers and branches: then warps wait at barriers, too."""
    return _full(kernel) == "adu" and (kernel.get(f"{STALL}barrier") or 0.0) >= AT_BARRIERS


def _full(kernel: Seen) -> str:
    """The pipe that is full, and fuller than the schedulers are; '' if none is."""
    pipe, use = kernel.fullest
    return pipe if use >= max(kernel.get("issue_active") or 0.0, FULL_PIPE) else ""


def _ready(kernel: Seen, issue: float) -> bool:
    """Whether most warps could go on at once if schedulers and pipes were free."""
    return issue >= OFTEN and sum(kernel.get(f"{STALL}{name}") or 0.0 for name in READY) >= MOSTLY


def _does_the_op(known: Known, pipe: str) -> bool:
    return pipe.startswith("tensor") or (known.subject.bound_by_compute and pipe.startswith(_OPERATIONS))


def _operations(known: Known, kernel: Seen, pipe: str, use: float) -> Reason:
    """The pipe is full of what the op asks for, so that fewer other instructions don't help."""
    saves, last = spared(known, kernel.seconds, kernel.seconds * (1 - use), f"(1 - {share(use)}) of it")
    return Reason(
        "instructions",
        f"Operations: the pipe that does the op's operations, '{pipe}', is {share(use)} full.",
        (f"in {known.label(kernel)}", *_counts(known, kernel), last),
        "take a cheaper type, or an algorithm with fewer operations; else keep the pipe fed all the time",
        saves,
    )


def _reason(known: Known, kernel: Seen, busy: float, full: str) -> Reason:
    saves, last = spared(known, kernel.seconds, *above_stream(known, kernel))
    what = f"the pipe '{full}' is {share(busy)} full" if full else f"schedulers issue in {share(busy)} of the cycles"
    remedy = next((text for pipe, text in _REMEDIES.items() if full.startswith(pipe)), _GENERAL)
    return Reason(
        "instructions",
        f"Instructions: {what}, while memory is {share(known.memory_busy(kernel) or 0.0)} busy.",
        (f"in {known.label(kernel)}", *_counts(known, kernel), last),
        remedy,
        saves,
    )


def _counts(known: Known, kernel: Seen) -> Iterator[str]:
    count, words = kernel.get("instructions"), known.work.moved / 4
    if count and words and len(known.kernels) == 1:
        every = count * kernel.launches
        moved = f"{amount(words)} words of 4 bytes that the op moves"
        yield f"{amount(every)} instructions of warps x 32 lanes / {moved} = {every * 32 / words:.1f} a word"
    pipe, use = kernel.fullest
    if pipe:
        yield f"fullest pipe: {pipe}, which got {share(use)} of the instructions that it can take"
