"""How layer_norm works on many long rows: teams of threads take them in turn. Twin of norm_in_turn.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.collection.ops.chip import MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks

if TYPE_CHECKING:
    from harness.cuda import Kernel

_THREADS = 512  # of a block at most: one half of the registers is for gamma and beta, the other half for the work
_PACKS = 8  # of a row that a thread has
# A stage is shared memory for one row. While one row waits for its sums, the sums of a second row are made, and a third
# one is being loaded. To load more than two rows at a time was slower on an H200.
_FEWEST_STAGES, _MOST_STAGES = 3, 4
_FEWEST_TURNS = 3  # rows that a team must take for this to be faster
# Packs of a row, by bytes an element: with fewer of them, teams of one row each were faster on an H200.
_FEWEST_PACKS = {4: 16_385, 2: 8193}
_BARRIER = 8  # bytes
_SLOTS, _SUMS = 8, 8  # sums of a warp that are kept, and their bytes: see Exchange in norm_in_turn.cuh


@dataclass(frozen=True, slots=True)
class InTurn:
    """What the kernel is compiled for and launched with. A team is a cluster of MOST_BLOCKS blocks.

    threads: of a block. stages: rows of which a block has its part in shared memory. whole: whether no thread lacks a
    pack. most: clusters that the device holds, with one block on each multiprocessor.
    """

    threads: int
    stages: int
    whole: bool
    most: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, chip: Chip) -> Self | None:
        """The plan for a matrix; None where another kernel has to do it.

        That is where rows aren't whole packs, are too short, too long or too few, or where there are no clusters.
        """
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        if rest or not chip.clusters or packs < _FEWEST_PACKS[itemsize]:
            return None
        threads = blocks(blocks(packs, MOST_BLOCKS * _PACKS), WARP) * WARP
        warps = threads // WARP
        stages = (chip.shared - _exchange_bytes(warps)) // (_stage_bytes(warps) + warps * _BARRIER)
        plan = cls(
            threads=threads,
            stages=min(stages, _MOST_STAGES),
            whole=packs == _PACKS * threads * MOST_BLOCKS,
            most=max(1, chip.multiprocessors // MOST_BLOCKS),
        )
        fits = threads <= _THREADS and stages >= _FEWEST_STAGES
        return plan if fits and blocks(rows, plan.most) >= _FEWEST_TURNS else None

    @property
    def shared(self) -> int:
        """Bytes of a block's stages."""
        return self.stages * _stage_bytes(self.threads // WARP)

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {
            "PACKS": _PACKS,
            "THREADS": self.threads,
            "BLOCKS": MOST_BLOCKS,
            "STAGES": self.stages,
            "WHOLE": int(self.whole),
        }

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for so many rows: as few as take no more turns than all that the device holds."""
        # A cluster must lie in one group of multiprocessors, so fewer may fit than there are multiprocessors for.
        most = max(1, min(self.most, kernel.resident_clusters(self.threads, self.shared, MOST_BLOCKS)))
        turns = max(1, blocks(rows, most))
        return blocks(rows, turns) * MOST_BLOCKS


def _stage_bytes(warps: int) -> int:
    """Bytes of shared memory for a block's part of a row. Each warp has the row's first pack, too."""
    return warps * (_PACKS * WARP + 1) * PACK_BYTES


def _exchange_bytes(warps: int) -> int:
    """Bytes of shared memory for the sums of all blocks' warps, and for aligning the stages behind them."""
    return _SLOTS * (MOST_BLOCKS * warps * _SUMS + _BARRIER) + PACK_BYTES
