"""How layer_norm works on many long rows: teams of threads take them in turn. Twin of norm_in_turn.cuh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.collection.ops.chip import MOST_BLOCKS, RESERVED, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, power_of_2_from
from harness.collection.ops.rows._wide_clusters import most_blocks, resident_clusters

if TYPE_CHECKING:
    from harness.cuda import Kernel

_THREADS = 512  # of a block at most: one half of the registers is for gamma and beta, the other half for the work
_PACKS = 8  # of a row that a thread has at most
# A stage is shared memory for one row. While one row waits for its sums, the sums of a second row are made, and a third
# one is being loaded. To load more than two rows at a time was slower on an H200.
_FEWEST_STAGES, _MOST_STAGES = 3, 4
_LONGEST = 2**18  # columns: no other plan takes longer rows
_FEWEST_TURNS = 3  # rows that a team must take for this to be faster
# Packs of a row, by bytes an element: with fewer of them, teams of one row each were faster on an H200.
_FEWEST_PACKS = {4: 16_385, 2: 8193}
_FEWEST_RAGGED = {4: 1025, 2: 224}  # where rows begin inside of packs; in float32 an estimate, by the bytes under way
_BARRIER = 8  # bytes
_SLOTS, _SUMS = 8, 8  # sums of a warp that are kept, and their bytes: see Exchange in norm_in_turn.cuh


@dataclass(frozen=True, slots=True)
class InTurn:
    """What the kernel is compiled for and launched with. A team is a block, or a cluster of blocks.

    blocks: of a team. packs: of a thread. threads: of a block. resident: blocks of a multiprocessor. stages: rows of
    which a block has its part in shared memory. whole: whether no thread lacks a pack. apart: rows so many apart begin
    at the same place of a pack, so 1 where they are whole packs. most: teams that the device holds.
    """

    blocks: int
    packs: int
    threads: int
    resident: int
    stages: int
    whole: bool
    apart: int
    most: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, chip: Chip) -> Self | None:
        """The plan for a matrix; None where another kernel has to do it.

        That is where rows are too short, too long or too few, where shared memory holds too few stages, or where there
        are no clusters.
        """
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        size, ragged = PACK_BYTES // itemsize, rest > 0
        if not chip.clusters or packs < (_FEWEST_RAGGED if ragged else _FEWEST_PACKS)[itemsize]:
            return None
        fewest = power_of_2_from(blocks(packs, _PACKS * _THREADS))
        team = fewest if ragged else max(MOST_BLOCKS, fewest)
        threads = blocks(blocks(packs, team * _PACKS), WARP) * WARP
        kept = blocks(packs, team * threads) if ragged else _PACKS
        # While one team of a multiprocessor waits for its sums, other teams go on.
        resident = max(1, _THREADS // threads) if ragged else 1
        warps, room = threads // WARP, (chip.shared + RESERVED) // resident - RESERVED
        stages = (room - _exchange_bytes(team * warps)) // (_stage_bytes(warps, kept, ragged) + warps * _BARRIER)
        plan = cls(
            blocks=team,
            packs=kept,
            threads=threads,
            resident=resident,
            stages=min(stages, _MOST_STAGES),
            whole=not ragged and packs == kept * threads * team,
            apart=size // math.gcd(columns, size),
            most=max(1, chip.multiprocessors * resident // team),
        )
        fits = columns <= _LONGEST and team <= most_blocks(chip) and threads <= _THREADS and stages >= _FEWEST_STAGES
        return plan if fits and blocks(rows, plan.most) >= _FEWEST_TURNS else None

    @property
    def ragged(self) -> bool:
        """Whether rows begin inside of packs."""
        return self.apart > 1

    @property
    def shared(self) -> int:
        """Bytes of a block's stages."""
        return self.stages * _stage_bytes(self.threads // WARP, self.packs, self.ragged)

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {
            "PACKS": self.packs,
            "THREADS": self.threads,
            "RESIDENT_BLOCKS": self.resident,
            "BLOCKS": self.blocks,
            "STAGES": self.stages,
            "WHOLE": int(self.whole),
            "RAGGED": int(self.ragged),
        }

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for so many rows: as few as take no more turns than all that the device holds.

        0 where another kernel has to do it: the device holds fewer teams than rows begin at different places of a pack.
        """
        # A cluster must lie in one group of multiprocessors, so fewer may fit than there are multiprocessors for.
        most = min(self.most, resident_clusters(kernel, self.threads, self.shared, self.blocks))
        # All rows of a team begin alike, so the number of teams is a multiple of `apart`.
        alike = most // self.apart * self.apart
        if alike == 0:
            return 0
        turns = max(1, blocks(rows, alike))
        return blocks(blocks(rows, turns), self.apart) * self.apart * self.blocks


def _stage_bytes(warps: int, packs: int, ragged: bool) -> int:
    """Bytes of shared memory for a block's part of a row.

    Each warp has the row's first whole pack, too, and where rows are ragged, room for words with single elements.
    """
    return warps * (packs * WARP + 1 + 4 * ragged) * PACK_BYTES


def _exchange_bytes(warps: int) -> int:
    """Bytes of shared memory for the sums of a team's warps, and for aligning the stages behind them."""
    return _SLOTS * (warps * _SUMS + _BARRIER) + PACK_BYTES
