"""How layer_norm goes about many long rows: teams of threads that take them in turn. Twin of norm_in_turn.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.ops._device import MOST_BLOCKS, RESERVED, WARP, Device
from harness.ops._elementwise import PACK_BYTES, blocks, power_of_2_from

if TYPE_CHECKING:
    from harness.cuda import Kernel

_FLOAT = 4  # bytes
_RESIDENT = 1024  # threads of a multiprocessor, whose registers they share
_VECTORS = 2  # gamma and beta
_FEWEST_TURNS = 3  # of a team that pay for them
# Packs of a row, by the bytes of an element: with fewer, teams of one row each were faster on an H200.
_FEWEST_PACKS = {4: 8193, 2: 4096}
_BLOCK_PACKS = 4096  # of a row that a block takes, if clusters are small
_SPREAD_PACKS = 8192  # beyond them a row is spread over the largest of clusters
_LARGE_PACKS = 16384  # beyond them threads have _MOST_PACKS of it in these, too
_FEW_PACKS, _MOST_PACKS = 4, 8  # a thread


@dataclass(frozen=True, slots=True)
class Team:
    """`cluster` blocks of `threads` that share a row, of which each thread has `count` packs at most."""

    count: int
    threads: int
    cluster: int

    @classmethod
    def of(cls, packs: int, itemsize: int) -> Self | None:
        """The one for rows of so many packs; None where teams of one row each are better."""
        if packs < _FEWEST_PACKS[itemsize]:
            return None
        count, cluster = _MOST_PACKS, MOST_BLOCKS
        if packs <= _SPREAD_PACKS:
            cluster = power_of_2_from(blocks(packs, _BLOCK_PACKS))
        elif packs <= _LARGE_PACKS:
            count = _FEW_PACKS
        return cls(count, blocks(blocks(packs, cluster * count), WARP) * WARP, cluster)


@dataclass(frozen=True, slots=True)
class InTurn:
    """What the kernel is compiled for and launched with.

    blocks: that a multiprocessor holds. whole: no thread's pack is missing. shared: bytes of a block. most: blocks, or
    clusters, that the device holds.
    """

    team: Team
    blocks: int
    whole: bool
    shared: int
    most: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, device: Device) -> Self | None:
        """None where rows aren't whole packs, or too short, too long or too few for it."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        team = None if rest else Team.of(packs, itemsize)
        if team is None or team.threads > _RESIDENT or (team.cluster > 1 and not device.clusters):
            return None
        stage = team.count * team.threads + team.threads // WARP
        shared = (stage + _VECTORS * team.count * team.threads) * PACK_BYTES
        # Two sets of two partial sums of each warp, and two barriers.
        own = shared + 2 * 2 * WARP * (MOST_BLOCKS if team.cluster > 1 else 1) * _FLOAT + 16
        fitting = min(_RESIDENT // team.threads, (device.shared + RESERVED) // (own + RESERVED))
        if fitting < 1:
            return None
        whole = packs == team.count * team.threads * team.cluster
        plan = cls(team, fitting, whole, shared, max(1, device.multiprocessors * fitting // team.cluster))
        return plan if blocks(rows, plan.most) >= _FEWEST_TURNS else None

    @property
    def macros(self) -> dict[str, int]:
        """What the kernel is to be compiled with."""
        return {
            "COUNT": self.team.count,
            "LANES": 0,
            "THREADS": self.team.threads,
            "CLUSTER": int(self.team.cluster > 1),
            "RAGGED": 0,
            "TILE": 0,
            "TOGETHER": 1,
            "BLOCKS": self.blocks,
            "WHOLE": int(self.whole),
        }

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for that many rows, no more than the device holds. Fewer do if they take no more turns."""
        team, most = self.team, self.most
        if team.cluster > 1:
            # Multiprocessors come in groups, of which each has room for so many clusters.
            most = max(1, min(most, kernel.resident_clusters(team.threads, self.shared, team.cluster)))
        turns = max(1, blocks(rows, most))
        return blocks(rows, turns) * team.cluster
