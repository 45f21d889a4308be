"""How layer_norm and rms_norm go about many rows: teams of threads that take them in turn. Twin of norm.cuh's InTurn.

Gamma and beta stay in shared memory. `vectors` is how many of them there are: 2 (LayerNorm), or 1 (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness import cuda
from harness.ops._elementwise import PACK_BYTES, blocks, power_of_2_from

if TYPE_CHECKING:
    from harness.cuda import Kernel

WARP = 32
_MOST_BLOCKS = 8  # of a cluster, on every device that has them
_RESERVED = 1024  # bytes of shared memory that a device takes for each block, beside the block's own
_FLOAT = 4  # bytes
_FEWEST_TURNS = 3  # of a team that pay for gamma and beta
_PACKS = 4  # a thread
_FEWEST_PACKS = 8 * WARP  # of a row
_BLOCK_PACKS = 2048  # of a row that a block takes, if a cluster can have the rest


@dataclass(frozen=True, slots=True)
class Device:
    """multiprocessors; whether blocks form clusters; bytes of shared memory that a block may have."""

    multiprocessors: int
    clusters: bool
    shared: int

    @classmethod
    def current(cls) -> Device:
        """The one that kernels run on."""
        return cls(cuda.multiprocessors(), cuda.has_clusters(), cuda.shared_memory())


@dataclass(frozen=True, slots=True)
class Team:
    """Threads that share a row, and what they have of it.

    count: packs a thread. lanes: threads of a warp that share a row; 0 where `cluster` blocks of `threads` do. ahead:
    rows that are under way while one is worked on. resident: threads that a multiprocessor is to hold.
    """

    count: int
    lanes: int
    threads: int
    cluster: int = 1
    ahead: int = 1
    resident: int = 1024

    @property
    def size(self) -> int:
        """Threads."""
        return self.lanes or self.threads * self.cluster

    @property
    def rows(self) -> int:
        """That a block, or a cluster, takes at a time."""
        return self.threads // self.lanes if self.lanes else 1

    @classmethod
    def of_warp(cls, packs: int, count: int, threads: int, ahead: int = 1, resident: int = 1024) -> Self:
        """Lanes of a warp, with `count` packs each at most."""
        lanes = power_of_2_from(blocks(packs, count))
        return cls(blocks(packs, lanes), lanes, threads, ahead=ahead, resident=resident)

    @classmethod
    def of_blocks(cls, packs: int, count: int, cluster: int = 1, ahead: int = 1, resident: int = 1024) -> Self:
        """Blocks, of as few threads as do with `count` packs each."""
        threads = blocks(blocks(packs, cluster * count), WARP) * WARP
        return cls(count, 0, threads, cluster, ahead, resident)


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
    def of(cls, rows: int, columns: int, itemsize: int, vectors: int, device: Device) -> Self | None:
        """None where rows aren't whole packs, or too long or too few for it."""
        packs, rest = divmod(columns * itemsize, PACK_BYTES)
        if rest:
            return None
        for team in _teams(packs):
            plan = cls.with_team(team, packs, vectors, device)
            if plan is not None:
                return plan if plan.turns(rows) >= _FEWEST_TURNS else None
        return None

    @classmethod
    def with_team(cls, team: Team, packs: int, vectors: int, device: Device) -> Self | None:
        """For rows of so many packs; None where that doesn't fit."""
        if team.threads > 1024 or (team.cluster > 1 and not device.clusters):
            return None
        stage = team.count * team.threads + (team.threads // WARP if vectors == 2 and not team.lanes else 0)
        kept = vectors * team.count * (team.lanes or team.threads)
        shared = (team.ahead * stage + kept) * PACK_BYTES
        # Two sets of partial sums of each warp, and two barriers.
        own = shared + 2 * vectors * WARP * (_MOST_BLOCKS if team.cluster > 1 else 1) * _FLOAT + 16
        fitting = min(team.resident // team.threads, (device.shared + _RESERVED) // (own + _RESERVED))
        if fitting < 1:
            return None
        whole = packs == team.count * team.size
        return cls(team, fitting, whole, shared, max(1, device.multiprocessors * fitting // team.cluster))

    @property
    def macros(self) -> dict[str, int]:
        """What norm.cuh is to be compiled with."""
        return {
            "COUNT": self.team.count,
            "LANES": self.team.lanes,
            "THREADS": self.team.threads,
            "CLUSTER": int(self.team.cluster > 1),
            "RAGGED": 0,
            "TILE": 0,
            "TOGETHER": 1,
            "AHEAD": self.team.ahead,
            "BLOCKS": self.blocks,
            "WHOLE": int(self.whole),
        }

    def turns(self, rows: int) -> int:
        """Rows that a team takes, at most."""
        return blocks(rows, self.most * self.team.rows)

    def grid(self, rows: int, kernel: Kernel) -> int:
        """Blocks for that many rows, no more than the device holds. Fewer do if they take no more turns."""
        team, most = self.team, self.most
        if team.cluster > 1:
            # Multiprocessors come in groups, of which each has room for so many clusters.
            most = max(1, min(most, kernel.resident_clusters(team.threads, self.shared, team.cluster)))
        turns = max(1, blocks(rows, most * team.rows))
        return blocks(rows, turns * team.rows) * team.cluster


def _teams(packs: int) -> Iterator[Team]:
    """Those that may do for rows of so many packs, the better ones first."""
    if packs < _FEWEST_PACKS:
        return
    cluster = power_of_2_from(blocks(packs, _BLOCK_PACKS))
    while cluster <= _MOST_BLOCKS:
        yield Team.of_blocks(packs, _PACKS, cluster)
        cluster *= 2
    # Longer rows leave room for a single block on a multiprocessor.
    yield Team.of_blocks(packs, _PACKS, _MOST_BLOCKS)
