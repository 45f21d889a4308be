"""From measured sizes to a size that wasn't measured: a neighbour's plan that is fast on both sides of the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.plans.records import Entry, Plan, TimedPlan

_REACH = 1.0
"""How far a neighbour may be, in powers of two: beyond twice or half of a size, the rule is as good a guess."""
_ALIKE = 0.01
"""A loss of time that counts as none: the plan of the rule is kept where it is so near to the fastest."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A plan, and the measured size that it comes from. distance: from there to the size, in powers of two.

    loss: by how much it was slower than the fastest plan at the worse of the sizes around, as a share.
    """

    plan: Plan
    shape: Mapping[str, int]
    distance: float
    loss: float


def choose(entries: Sequence[Entry], shape: Mapping[str, int], legal: Callable[[Plan], bool]) -> Neighbour | None:
    """The plan to take at a size; None where the rule is to be taken, since nothing near was measured or better.

    entries: of the variant, dtype and choices. Around a size lie up to two measured sizes: the nearest, and the nearest
    one beyond the size. A plan is taken if it is legal at the size and was timed at all of these; of several, the one
    that loses least at the worse of them. If no plan was timed at both, the plans of the nearest one decide.
    """
    near = sorted(_near(entries, shape), key=lambda found: found[0])
    if not near:
        return None
    distance, first = near[0]
    ends = [first, *(other for _, other in near if _beyond(first, other, shape))][:2]
    for around in (ends, ends[:1]):
        rated = [(_loss(timed.plan, around), timed) for timed in first.timed if legal(timed.plan)]
        rated = [(loss, timed) for loss, timed in rated if loss < math.inf]
        if rated:
            loss, best = min(rated, key=lambda found: found[0])
            kept = max(_rule_loss(entry) for entry in around)
            return None if kept <= loss + _ALIKE else Neighbour(best.plan, first.shape, distance, loss)
    return None


def _near(entries: Sequence[Entry], shape: Mapping[str, int]) -> Iterator[tuple[float, Entry]]:
    for entry in entries:
        if entry.timed:
            distance = math.dist(_logs(entry.shape), _logs(shape))
            if distance <= _REACH:
                yield distance, entry


def _logs(shape: Mapping[str, int]) -> list[float]:
    return [math.log2(max(1, size)) for size in shape.values()]


def _beyond(first: Entry, other: Entry, shape: Mapping[str, int]) -> bool:
    """Whether the size lies between the two: they stand in opposite directions from it."""
    middle = _logs(shape)
    ways = [[a - b for a, b in zip(_logs(entry.shape), middle, strict=True)] for entry in (first, other)]
    along: float = sum(there * beyond for there, beyond in zip(*ways, strict=True))
    return along < 0


def _loss(plan: Plan, around: Sequence[Entry]) -> float:
    """By how much the plan was slower than the fastest at the worst of the sizes; infinite where it wasn't timed."""
    return max(_slower(entry, lambda timed: timed.plan == plan) for entry in around)


def _rule_loss(entry: Entry) -> float:
    """By how much the rule's plan was slower than the fastest; 0 where the search found none that surely is faster."""
    return 0.0 if entry.timed[0].rule else _slower(entry, lambda timed: timed.rule)


def _slower(entry: Entry, wanted: Callable[[TimedPlan], bool]) -> float:
    found = next((timed for timed in entry.timed if wanted(timed)), None)
    return found.time / min(timed.time for timed in entry.timed) - 1 if found else math.inf
