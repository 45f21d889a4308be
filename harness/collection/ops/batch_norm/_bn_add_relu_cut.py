"""How the statistics of bn_add_relu cut a tensor among blocks. Twin of kernels/batch_norm/bn_add_relu_statistics.cuh.

A row is the `inner` neighbouring elements of one channel at one outer place; a sample is the rows of all channels at
one outer place. Each block adds up a part of the tensor, and writes its sums to slots: places (channel, slot) in memory
that a second kernel adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness import cuda
from harness.collection.ops.batch_norm import _whole
from harness.collection.ops.batch_norm._batch_norm import LIMIT_32, MOST_SLOTS, ImageSizes
from harness.collection.ops.elementwise import BLOCK, PACK_BYTES, blocks
from harness.model import Case
from harness.ops import ITEMSIZE, Plan, Tuning

# The kernels have these two numbers as well.
_MOST_ACROSS = 8
_IN_FLIGHT = 4
# The kernels don't know the numbers from here on.
_MOST_COUNT = 2**24  # elements of a partial sum, whose number is a float
_RESIDENT = 4  # blocks of a multiprocessor at a time, as the kernels' launch bounds have it
_MOST_WAVES = 4  # a wave is the number of blocks that run at a time
_BEFORE_AND_AFTER = 8  # what a block does besides adding takes as long as so many packs a thread
LONG_ROW = 8  # tiles, from which on a row is worth a block, unless there are more samples than that
_PERIOD = 32  # tiles of a period at least, so that the last one, which isn't full, is few of them


def _resident() -> int:
    """Blocks that run at a time."""
    return _RESIDENT * cuda.multiprocessors()


def is_of_pieces(sizes: ImageSizes, per_pack: int) -> bool:
    """Whether rows are so long, and so few, that each is cut into pieces."""
    return sizes.inner >= max(LONG_ROW, sizes.outer) * BLOCK * per_pack


def _refuse(case: Case, plan: Plan) -> str | None:
    """Why a tensor can't be cut so."""
    sizes, per_pack, turns = ImageSizes.of_case(case), PACK_BYTES // ITEMSIZE[case.dtype], int(plan["turns"])
    if plan["whole"]:
        return "one kernel has no turns" if turns else _whole.refusal(case, int(plan["whole"]))
    if not turns:
        return None
    if is_of_pieces(sizes, per_pack):
        slots = sizes.outer * RowPieces.of(sizes, per_pack, turns).count
    else:
        cut = StatisticsCut.of(sizes, per_pack, turns)
        slots = cut.slots if cut else 0
    if not slots:
        return "the sums aren't cut into turns"
    return f"a channel has more than {MOST_SLOTS} partial sums" if slots > MOST_SLOTS else None


WHOLE = _whole.WholeKernel(
    "bn_add_relu_whole.cu",
    "bn_whole",
    packs=("x", "z", "y"),
    arguments=("x", "z", "gamma", "beta", "running_mean", "running_var", "mean", "invstd", "y", "mask"),
)
"""The kernel of small layers."""


def _rule(case: Case) -> Plan:
    return {"turns": 0, "whole": _whole.rule_of_case(case)}


TUNING = Tuning(_whole.parameters, _rule, _refuse, WHOLE.kernels)
"""What `tuned` of bn_add_relu declares.

turns: packs of a thread that adds up; 0 where the rule says how many. whole: blocks that own a group of channels, where
one kernel makes all of a layer; 0 where three kernels do.
"""


@dataclass(frozen=True, slots=True)
class RowPieces:
    """A long row as bn_statistics_pieces cuts it: `count` pieces of `length` elements, the last one perhaps shorter."""

    count: int
    length: int

    @classmethod
    def of(cls, sizes: ImageSizes, per_pack: int, turns: int = 0) -> RowPieces:
        """The pieces of each row of a tensor. per_pack: elements of 16 bytes. turns: packs of a thread; 0 by rule."""
        tile = BLOCK * per_pack
        wanted = turns * tile or max(LONG_ROW * tile, sizes.elements // (_MOST_WAVES * _resident()))
        count = max(1, sizes.inner // wanted, blocks(sizes.inner, _MOST_COUNT))
        length = blocks(sizes.inner, count * per_pack) * per_pack
        return cls(blocks(sizes.inner, length), length)


@dataclass(frozen=True, slots=True)
class StatisticsCut:
    """The tensor as the kernels for shorter rows cut it: `rounds` periods of `period` elements, the last perhaps less.

    per_pack: elements of 16 bytes. samples: whole samples of a period. across: packs of a tile. along: threads that
    share the packs at one place of the tile; each of them takes other rounds. A block takes the same tile of
    `rounds_a_block` rounds. turns: packs of a thread; 0 where the rule says how many.
    """

    sizes: ImageSizes
    per_pack: int
    samples: int
    across: int
    along: int
    turns: int = 0

    @classmethod
    def of(cls, sizes: ImageSizes, per_pack: int, turns: int = 0) -> StatisticsCut | None:
        """The cut of a tensor; None where even the shortest period is too long for 32-bit indexes."""
        sample = sizes.channels * sizes.inner
        step = per_pack // math.gcd(per_pack, sample)  # samples that make whole packs
        if sizes.inner < per_pack:
            samples = min(sizes.outer, step)
            packs = blocks(samples * sample, per_pack)
            across = blocks(packs, blocks(packs, _MOST_ACROSS))
            along = BLOCK // across
        else:
            # A single period needs no successor to be aligned.
            samples = min(sizes.outer, step * blocks(_PERIOD * BLOCK * per_pack, step * sample))
            across, along = BLOCK, 1
        return cls(sizes, per_pack, samples, across, along, turns) if samples * sample < LIMIT_32 else None

    @property
    def period(self) -> int:
        """Elements of a period."""
        return self.samples * self.sizes.channels * self.sizes.inner

    @property
    def rounds(self) -> int:
        """Periods of the tensor."""
        return blocks(self.sizes.outer, self.samples)

    @property
    def tile(self) -> int:
        """Elements of a tile."""
        return self.across * self.per_pack

    @property
    def tiles(self) -> int:
        """Tiles of a period."""
        return blocks(self.period, self.tile)

    @property
    def rounds_a_block(self) -> int:
        """Rounds of a block: a multiple of `along` and, unless that is more than all, of a thread's packs in flight."""
        turns = blocks(self.rounds, self.along)
        if self.turns:
            return min(turns, self.turns) * self.along
        return min(self._even(turns), key=lambda some: self._waves(some) * (some + _BEFORE_AND_AFTER)) * self.along

    def _even(self, turns: int) -> Iterator[int]:
        """Packs of a thread, of `turns` that there are, with which all blocks run in nearly whole waves."""
        for waves in range(1, _MOST_WAVES + 1):
            wanted = blocks(turns, max(1, waves * _resident() // self.tiles))
            yield min(turns, wanted if wanted < _IN_FLIGHT else blocks(wanted, _IN_FLIGHT) * _IN_FLIGHT)

    def _waves(self, turns: int) -> int:
        """Waves of blocks whose threads take `turns` packs each."""
        return blocks(self.tiles * blocks(self.rounds, turns * self.along), _resident())

    @property
    def stacked(self) -> int:
        """Blocks that take the same tile, each of other rounds."""
        return blocks(self.rounds, self.rounds_a_block)

    @property
    def slots_a_row(self) -> int:
        """Slots that a row needs: one for each element of a row shorter than a pack, else one for each of its tiles.

        Rows that begin elsewhere in a tile may lie in one tile less; this is the most.
        """
        inner, tile = self.sizes.inner, self.tile
        if inner < self.per_pack:
            return inner
        return blocks(inner, tile) if inner % tile == 0 or tile % inner == 0 else (inner - 2) // tile + 2

    @property
    def slots(self) -> int:
        """Slots of a channel."""
        return self.stacked * self.samples * self.slots_a_row

    @property
    def lanes(self) -> int:
        """Threads that add a row of a tile together, a power of two up to a warp."""
        most_rows = (self.tile - 2) // self.sizes.inner + 2
        return 1 << (min(32, max(1, BLOCK // most_rows)).bit_length() - 1)
