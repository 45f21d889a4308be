"""Rule: a kernel computes in double precision, which its op doesn't ask for."""

from __future__ import annotations

from collections.abc import Iterator

from harness.explain.records import Known, Reason
from harness.explain.words import above_stream, share, spared
from harness.model import PIPE

SUMMARY = "double precision where the case has a narrower type"
EFFECT_OF = ()
USED = 0.1  # of the pipe's rate; a few operations, such as a count's mean, cost next to nothing
DOUBLE = "fp64"


def judge(known: Known) -> Iterator[Reason]:
    """A reason for each kernel that uses the pipe of float64, in a case without float64, while memory is idle."""
    if "float64" in {known.case.dtype, *dict(known.work.flops)}:
        return
    for kernel in known.major:
        use = max((part for name, part in kernel.beginning(PIPE).items() if name.startswith(DOUBLE)), default=0.0)
        if use < USED or not known.memory_idle(kernel):
            continue
        saves, last = spared(known, kernel.seconds, *above_stream(known, kernel))
        yield Reason(
            "double",
            f"Double precision: the pipe of float64 is {share(use)} full in a case of {known.case.dtype}.",
            (
                f"in {known.label(kernel)}: a constant such as 0.5 is a double in C++, and what it meets becomes one",
                last,
            ),
            "write 0.5f, and expf(x) in place of exp(x); where the exactness is needed, keep doubles to the last sum",
            saves,
        )
