"""How the statistics of bn_add_relu cut a tensor among blocks. Twin of the kernels in bn_add_relu.cu, section 4."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from harness import cuda
from harness.ops._elementwise import BLOCK, blocks
from harness.ops.batch_norm._batch_norm import LIMIT_32, Layout

# As in bn_add_relu.cu:
_MOST_ACROSS = 8
_IN_FLIGHT = 4
# Of the host alone:
_MOST_COUNT = 2**24  # elements of a partial sum, whose number is a float
_RESIDENT = 4  # blocks of a multiprocessor at a time, as the kernels' launch bounds have it
_MOST_WAVES = 4  # of so many blocks
_BEFORE_AND_AFTER = 8  # what a block does besides adding takes as long as so many packs a thread
LONG_ROW = 8  # tiles, from which on a row is worth a block, unless there are more samples than that
_PERIOD = 32  # tiles of a period at least, so that the last one, which isn't full, is few of them


def _resident() -> int:
    """Blocks that run at a time."""
    return _RESIDENT * cuda.multiprocessors()


@dataclass(frozen=True, slots=True)
class Pieces:
    """A long row as bn_statistics_pieces cuts it: `count` pieces of `length` elements, the last one perhaps shorter."""

    count: int
    length: int

    @classmethod
    def of(cls, layout: Layout, per_pack: int) -> Pieces:
        tile = BLOCK * per_pack
        wanted = max(LONG_ROW * tile, layout.elements // (_MOST_WAVES * _resident()))
        count = max(1, layout.inner // wanted, blocks(layout.inner, _MOST_COUNT))
        length = blocks(layout.inner, count * per_pack) * per_pack
        return cls(blocks(layout.inner, length), length)


@dataclass(frozen=True, slots=True)
class Cut:
    """The tensor as the kernels for shorter rows cut it: `rounds` periods of `period` elements, the last perhaps less.

    samples: of a period. A block takes `rounds_a_block` rounds of a tile, which has `across` packs; `along` threads
    take different rounds of the same pack.
    """

    layout: Layout
    per_pack: int
    samples: int
    across: int
    along: int

    @classmethod
    def of(cls, layout: Layout, per_pack: int) -> Cut | None:
        """None where even the shortest period is too long."""
        sample = layout.channels * layout.inner
        step = per_pack // math.gcd(per_pack, sample)  # samples that make whole packs
        if layout.inner < per_pack:
            samples = min(layout.outer, step)
            packs = blocks(samples * sample, per_pack)
            across = blocks(packs, blocks(packs, _MOST_ACROSS))
            along = BLOCK // across
        else:
            # A single period needs no successor to be aligned.
            samples = min(layout.outer, step * blocks(_PERIOD * BLOCK * per_pack, step * sample))
            across, along = BLOCK, 1
        return cls(layout, per_pack, samples, across, along) if samples * sample < LIMIT_32 else None

    @property
    def period(self) -> int:
        return self.samples * self.layout.channels * self.layout.inner

    @property
    def rounds(self) -> int:
        return blocks(self.layout.outer, self.samples)

    @property
    def tile(self) -> int:
        return self.across * self.per_pack

    @property
    def tiles(self) -> int:
        """Of a period."""
        return blocks(self.period, self.tile)

    @property
    def rounds_a_block(self) -> int:
        """A multiple of `along` and, unless that is more than all, of the packs that a thread has in flight."""
        turns = blocks(self.rounds, self.along)
        return min(self._even(turns), key=lambda some: self._waves(some) * (some + _BEFORE_AND_AFTER)) * self.along

    def _even(self, turns: int) -> Iterator[int]:
        """Packs of a thread, of `turns` that there are, with which all blocks run in whole waves, nearly."""
        for waves in range(1, _MOST_WAVES + 1):
            wanted = blocks(turns, max(1, waves * _resident() // self.tiles))
            yield min(turns, wanted if wanted < _IN_FLIGHT else blocks(wanted, _IN_FLIGHT) * _IN_FLIGHT)

    def _waves(self, turns: int) -> int:
        """Of blocks of which each thread takes so many packs."""
        return blocks(self.tiles * blocks(self.rounds, turns * self.along), _resident())

    @property
    def stacked(self) -> int:
        """Blocks at the same place."""
        return blocks(self.rounds, self.rounds_a_block)

    @property
    def slots_a_row(self) -> int:
        """A short row's elements; of others the most tiles that a row lies in, where some may lie in one less."""
        inner, tile = self.layout.inner, self.tile
        if inner < self.per_pack:
            return inner
        return blocks(inner, tile) if inner % tile == 0 or tile % inner == 0 else (inner - 2) // tile + 2

    @property
    def slots(self) -> int:
        """Of a channel."""
        return self.stacked * self.samples * self.slots_a_row

    @property
    def lanes(self) -> int:
        """Threads that add a row of a tile together, a power of two up to a warp."""
        most_rows = (self.tile - 2) // self.layout.inner + 2
        return 1 << (min(32, max(1, BLOCK // most_rows)).bit_length() - 1)
