"""Offsets: what all pairs of a run have in common though the code is identical. More pairs of the run don't show it.

A block of a calibration is a small run of a code against itself, so blocks show offsets. From a machine's blocks comes
the scale of a case's offsets, their standard deviation, and from the scale the loss beyond which no case of a run lies
by its offset alone, with a chance that is fixed beforehand. Offsets are taken as normal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from harness.stats import Mean, t_quantile, t_tail

Key = TypeVar("Key")
OFFSET_ALPHA = 0.004
"""The chance that the offset of any case of a run lies beyond what is allowed for it."""
LEAST_BLOCKS = 5
"""A case with fewer blocks has no scale."""
OUTLIER = 3.0
"""Blocks that differ by more than this many robust standard deviations count as if they differed by that much."""
SHARED_BLOCKS = 10
"""The blocks of the machine's usual case count as so many blocks of each case."""
_NORMAL = statistics.NormalDist()
_QUARTILE = _NORMAL.inv_cdf(0.75)
"""Median of the absolute value of a standard normal variable."""


class Block(NamedTuple):
    """Mean of a block's changes, and its standard error; 0 where that isn't known, so that all of it is offset."""

    mean: float
    error: float = 0.0

    @classmethod
    def of(cls, changes: Sequence[float]) -> Block:
        """The block of at least two pairs."""
        mean = Mean.of(changes)
        return cls(mean.value, mean.error)


@dataclass(frozen=True, slots=True)
class Offset:
    """The scale of a case's offsets: their standard deviation, of changes. freedom: of the scale; 0 if it is assumed.

    blocks: of the case itself.
    """

    scale: float
    freedom: int = 0
    blocks: int = 0

    def allowed(self, family: int) -> float:
        """The change that the offsets of `family` cases stay below, but for a chance of OFFSET_ALPHA together."""
        level = OFFSET_ALPHA / max(1, family)
        quantile = t_quantile(level, self.freedom) if self.freedom else -_NORMAL.inv_cdf(level)
        return self.scale * quantile

    def chance(self, change: float) -> float:
        """The chance that an offset makes identical code slower by more than a change, which is positive."""
        if self.scale == 0:
            return 0.0
        distance = change / self.scale
        return t_tail(distance, self.freedom) if self.freedom else _NORMAL.cdf(-distance)


ASSUMED = Offset(0.004)
"""The offset of cases that were never calibrated: the largest difference of identical code in 112 blocks of an H200."""


def offsets(blocks: Mapping[Key, Sequence[Block]]) -> dict[Key, Offset]:
    """The scale of each case that has LEAST_BLOCKS or more, from all blocks of a machine.

    The mean over a case's blocks is a poor estimate where there are few blocks. So the machine's usual case counts,
    too, as SHARED_BLOCKS more blocks of each case, and no case has a smaller scale than the usual one. A case that is
    far off raises the usual one as if it were OUTLIER times the median case.
    """
    own = {key: _square(of_case) for key, of_case in blocks.items() if len(of_case) >= LEAST_BLOCKS}
    if not own:
        return {}
    most = OUTLIER**2 * max(0.0, statistics.median(square for square, _ in own.values()))
    usual = max(0.0, statistics.fmean(min(square, most) for square, _ in own.values()))
    found = {}
    for key, (square, count) in own.items():
        pooled = (count * max(square, usual) + SHARED_BLOCKS * usual) / (count + SHARED_BLOCKS)
        found[key] = Offset(math.sqrt(pooled), count + SHARED_BLOCKS, len(blocks[key]))
    return found


def _square(blocks: Sequence[Block]) -> tuple[float, int]:
    """Mean square of the offsets of a case's blocks, and of how many blocks; below 0 where noise hides the offsets.

    The product of two different pairs of a block is, on average, the square of the block's offset, whatever the noise
    of the pairs. The square of a block's mean less the square of its error is the mean of all such products. A block
    whose error is far larger than that of the others, since a process was far off, says nothing.
    """
    usual = statistics.median(block.error for block in blocks)
    kept = [block for block in blocks if block.error <= OUTLIER * usual]
    most = (OUTLIER * statistics.median(abs(block.mean) for block in blocks) / _QUARTILE) ** 2
    squares = (block.mean**2 - block.error**2 for block in kept)
    return statistics.fmean(max(-most, min(square, most)) for square in squares), len(kept)
