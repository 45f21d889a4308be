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
class Team:
    """`cluster` blocks of `threads` that share a row, of which each thread has `count` packs at most."""

    count: int
    threads: int
    cluster: int

    @classmethod
    def of(cls, packs: int, itemsize: int) -> Self | None:
        """The one for rows of so many packs; None where teams of one row each are better, or a row is too long."""
        if packs < _FEWEST_PACKS[itemsize]:
            return None
        threads = blocks(blocks(packs, MOST_BLOCKS * _PACKS), WARP) * WARP
        return cls(_PACKS, threads, MOST_BLOCKS) if threads <= _THREADS else None

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.threads // WARP

    @property
    def stage_bytes(self) -> int:
        """Of shared memory. Each warp has the row's first pack, too."""
        return self.warps * (self.count * WARP + 1) * PACK_BYTES

    @property
    def exchange_bytes(self) -> int:
        """Of shared memory, for sums of warps, and what aligns the stages behind them."""
        return _SLOTS * (self.cluster * self.warps * _SUMS + _BARRIER) + PACK_BYTES


@dataclass(frozen=True, slots=True)
class InTurn:
    """What the kernel is compiled for and launched with.

    stages: rows of which a block has its part in shared memory. whole: no thread's pack is missing. most: clusters that
    the device holds, with a block on each multiprocessor.
    """

    team: Team
    stages: int
    whole: bool
    most: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, device: Device) -> Self | None:
        """None where rows aren't whole packs, or too short, too long or too few for it, or there are no clusters."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        team = None if rest or not device.clusters else Team.of(packs, itemsize)
        if team is None:
            return None
        stages = (device.shared - team.exchange_bytes) // (team.stage_bytes + team.warps * _BARRIER)
        whole = packs == team.count * team.threads * team.cluster
        most = max(1, device.multiprocessors // team.cluster)
        plan = cls(team, min(stages, _MOST_STAGES), whole, most)
        return plan if stages >= _FEWEST_STAGES and blocks(rows, plan.most) >= _FEWEST_TURNS else None

    @property
    def shared(self) -> int:
        """Bytes of a block's stages."""
        return self.stages * self.team.stage_bytes

    @property
    def macros(self) -> dict[str, int]:
        """What the kernel is to be compiled with."""
        return {
            "PACKS": self.team.count,
            "THREADS": self.team.threads,
            "CLUSTER": self.team.cluster,
            "STAGES": self.stages,
            "WHOLE": int(self.whole),
        }

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for that many rows, no more than the device holds. Fewer do if they take no more turns."""
        team = self.team
        # Multiprocessors come in groups, of which each has room for so many clusters.
        most = max(1, min(self.most, kernel.resident_clusters(team.threads, self.shared, team.cluster)))
        turns = max(1, blocks(rows, most))
        return blocks(rows, turns) * team.cluster
