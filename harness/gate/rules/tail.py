"""Rule: calls that are slow now and then take time, too, which the median of a process doesn't show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from harness.gate.evidence import Evidence
from harness.gate.records import CaseEvidence, Finding

ACCEPT = "some calls of a case take far longer than the median now, so the mean is slower than in the base"
_MORE = 1.2
"""How many times as far above its median a mean must lie as in the base: other work on the machine seldom does that."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding for each case of ours whose mean is slower in every process, though its median passes.

    Such as an op that clears a table in each tenth call.
    """
    for found in evidence.cases:
        passes = found.decision is not None and found.decision.outcome in ("ok", "improved")
        if passes and not found.control and evidence.is_ours(found.case):
            yield from _judge(found, evidence.base)


def _judge(found: CaseEvidence, base: str) -> Iterator[Finding]:
    before, after = ([_mean(m.samples) for m in side if m.time] for side in (found.base, found.now))
    if not before or not after:
        return  # the rule 'wrong' fails it
    (slowest, furthest), (fastest, nearest) = map(max, zip(*before, strict=True)), map(min, zip(*after, strict=True))
    if fastest > slowest and nearest > _MORE * furthest:
        message = (
            f"some calls take far longer than the median now: each process has a mean of at least {nearest:.3g} times "
            f"its median, in {base} of {furthest:.3g} times at most"
        )
        advice = "run the gate again; if it stays so, find what some calls do more; if that is meant: --accept tail"
        yield Finding("tail", "undecided", message, advice, found.case, ("base", "now"))


def _mean(samples: Sequence[float]) -> tuple[float, float]:
    """The mean of the samples in seconds, and as a multiple of their median."""
    mean = fmean(samples)
    return mean, mean / median(samples)
