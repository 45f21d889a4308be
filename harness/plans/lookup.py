"""From measured sizes to a size that wasn't measured: a neighbour's plan that is fast on both sides of the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.plans.records import Entry, Plan, TimedPlan

_REACH = 1.0
"""How far a neighbour may be, in powers of two: beyond twice or half of a size, the rule is as good a guess."""
_GAP = 4.0
"""How far the two sizes around a size may be apart: a plan that is fast at both is taken for fast in between."""
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
    that loses least at the worse of them. If no plan was timed at both, the plans of the nearest one decide. Where the
    nearest one is too far to decide alone, a plan must have been timed at two sizes that the size lies between.
    """
    near = sorted(_near(entries, shape), key=lambda found: found[0])
    alone = [found for found in near if found[0] <= _REACH]
    if alone:
        distance, first = alone[0]
        ends = [first, *(other for _, other in alone if _beyond(first, other, shape))][:2]
    else:
        pairs = ((far, [one, other]) for far, one in near for _, other in near if _around(one, other, shape))
        distance, ends = next(pairs, (math.inf, []))
    found = _best(ends, legal) or (_best(ends[:1], legal) if alone else None)
    if found is None:
        return None
    loss, best, of_rule = found
    return None if of_rule <= loss + _ALIKE else Neighbour(best.plan, ends[0].shape, distance, loss)


def _best(around: Sequence[Entry], legal: Callable[[Plan], bool]) -> tuple[float, TimedPlan, float] | None:
    """The plan that loses least at the worst of measured sizes; its loss comes before it, the rule's loss behind it."""
    timed = [(_loss(each.plan, around), each) for each in around[0].timed if legal(each.plan)] if around else []
    loss, best = min(timed, key=lambda found: found[0], default=(math.inf, None))
    if best is None or loss == math.inf:
        return None
    return loss, best, max(_rule_loss(entry) for entry in around)


def _near(entries: Sequence[Entry], shape: Mapping[str, int]) -> Iterator[tuple[float, Entry]]:
    for entry in entries:
        if entry.timed:
            distance = math.dist(_logs(entry.shape), _logs(shape))
            if distance <= _GAP:
                yield distance, entry


def _logs(shape: Mapping[str, int]) -> list[float]:
    return [math.log2(max(1, size)) for size in shape.values()]


def _beyond(first: Entry, other: Entry, shape: Mapping[str, int]) -> bool:
    """Whether the size lies between the two: they stand in opposite directions from it."""
    return sum(_along(first, other, shape)) < 0


def _around(first: Entry, other: Entry, shape: Mapping[str, int]) -> bool:
    """Whether each of the size's numbers lies between the numbers of the two, or is one of them, and these are near."""
    apart = math.dist(_logs(first.shape), _logs(other.shape))
    return apart <= _GAP and _beyond(first, other, shape) and max(_along(first, other, shape)) <= 0


def _along(first: Entry, other: Entry, shape: Mapping[str, int]) -> list[float]:
    """For each symbol how far it is to both sizes, multiplied: below 0 where they lie in opposite directions."""
    sizes = zip(_logs(first.shape), _logs(other.shape), _logs(shape), strict=True)
    return [(one - here) * (another - here) for one, another, here in sizes]


def _loss(plan: Plan, around: Sequence[Entry]) -> float:
    """By how much the plan was slower than the fastest at the worst of the sizes; infinite where it wasn't timed."""
    return max(_slower(entry, lambda timed: timed.plan == plan) for entry in around)


def _rule_loss(entry: Entry) -> float:
    """By how much the rule's plan was slower than the fastest; 0 where the search found none that surely is faster."""
    return 0.0 if entry.timed[0].rule else _slower(entry, lambda timed: timed.rule)


def _slower(entry: Entry, wanted: Callable[[TimedPlan], bool]) -> float:
    found = next((timed for timed in entry.timed if wanted(timed)), None)
    return found.time / min(timed.time for timed in entry.timed) - 1 if found else math.inf
