"""How layer_norm goes about many long rows: teams of threads that take them in turn. Twin of norm_in_turn.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.ops._device import MOST_BLOCKS, WARP, Device
from harness.ops._elementwise import PACK_BYTES, blocks

if TYPE_CHECKING:
    from harness.cuda import Kernel

_THREADS = 512  # of a block at most: as many as have registers for gamma and beta, and as many for the work
_PACKS = 8  # of a row, that a thread has
# One whose sums are awaited, one whose sums are made, one under way. More than two of these were slower on an H200.
_FEWEST_STAGES, _MOST_STAGES = 3, 4
_FEWEST_TURNS = 3  # of a team that pay for them
# Packs of a row, by the bytes of an element: with fewer, teams of one row each were faster on an H200.
_FEWEST_PACKS = {4: 16_385, 2: 8193}
_BARRIER = 8  # bytes
_SLOTS, _SUMS = 8, 8  # sums of a warp that are kept, and their bytes: see Exchange


@dataclass(frozen=True, slots=True)
class InTurn:
    """What the kernel is compiled for and launched with: clusters of MOST_BLOCKS share a row.

    threads: of a block. stages: rows of which a block has its part in shared memory. whole: no thread's pack is
    missing. most: clusters that the device holds, with a block on each multiprocessor.
    """

    threads: int
    stages: int
    whole: bool
    most: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, device: Device) -> Self | None:
        """None where rows aren't whole packs, or too short, too long or too few for it, or there are no clusters."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        if rest or not device.clusters or packs < _FEWEST_PACKS[itemsize]:
            return None
        threads = blocks(blocks(packs, MOST_BLOCKS * _PACKS), WARP) * WARP
        warps = threads // WARP
        stages = (device.shared - _exchange_bytes(warps)) // (_stage_bytes(warps) + warps * _BARRIER)
        plan = cls(
            threads=threads,
            stages=min(stages, _MOST_STAGES),
            whole=packs == _PACKS * threads * MOST_BLOCKS,
            most=max(1, device.multiprocessors // MOST_BLOCKS),
        )
        fits = threads <= _THREADS and stages >= _FEWEST_STAGES
        return plan if fits and blocks(rows, plan.most) >= _FEWEST_TURNS else None

    @property
    def shared(self) -> int:
        """Bytes of a block's stages."""
        return self.stages * _stage_bytes(self.threads // WARP)

    @property
    def macros(self) -> dict[str, int]:
        """What the kernel is to be compiled with."""
        return {
            "PACKS": _PACKS,
            "THREADS": self.threads,
            "BLOCKS": MOST_BLOCKS,
            "STAGES": self.stages,
            "WHOLE": int(self.whole),
        }

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for that many rows, no more than the device holds. Fewer do if they take no more turns."""
        # Multiprocessors come in groups, of which each has room for so many clusters.
        most = max(1, min(self.most, kernel.resident_clusters(self.threads, self.shared, MOST_BLOCKS)))
        turns = max(1, blocks(rows, most))
        return blocks(rows, turns) * MOST_BLOCKS


def _stage_bytes(warps: int) -> int:
    """Of shared memory, for a row's part. Each warp has the row's first pack, too."""
    return warps * (_PACKS * WARP + 1) * PACK_BYTES


def _exchange_bytes(warps: int) -> int:
    """Of shared memory, for sums of all blocks' warps, and what aligns the stages behind them."""
    return _SLOTS * (MOST_BLOCKS * warps * _SUMS + _BARRIER) + PACK_BYTES
