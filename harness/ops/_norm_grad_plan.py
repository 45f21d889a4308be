"""How the backwards of LayerNorm and RMSNorm go about rows that come in tiles. Twin of norm_grad_tiles.cuh.

`sums` is how many sums a row or a column has: 2 (LayerNorm), or 1 (RMSNorm).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness import cuda
from harness.ops._elementwise import PACK_BYTES, blocks, power_of_2_from

FLOAT = 4  # bytes
WARP = 32
RESIDENT_WITH_SUMS = 512  # as in kernels/include/norm_grad.cuh

_TEAM_BLOCK = 256  # threads, where lanes of a warp are a team
# Bytes of dy, x and statistics that a tile has at most where lanes of a warp are a team, but for a single row a team.
# Three of them for each of two blocks fit into a multiprocessor.
_TILE_OF_WARPS = 33 * 1024
_MOST_STAGES = 3
_MOST_BLOCKS = 8  # blocks that a cluster has at most, on every device that has clusters
_RESERVED = 1024  # bytes of shared memory that a device takes for each block, beside the block's own
_BARRIERS = 1024  # bytes, ample for a block's barriers and what aligns them
_THREAD_PACKS = 4  # that a thread reduces at a time
_THREAD_COLUMNS = 32  # sums of columns that fit into a thread's registers
_THREAD_FLOATS = 16  # elements of a row that a thread may keep as floats
_FEWEST_PACKS = 2  # of a row that a thread of a block has: with one there would be as many reductions as packs
_THREAD_SINGLES = 16  # single elements that a thread reduces at a time
# Of a row that it has at most; their addresses take registers, too. From 21 on LayerNorm's floats spill 24 to 64 bytes.
_MOST_SINGLES = 24
# Matrices of a few tiles go to a single team, if that has at most so many bytes of each in one of its blocks: it takes
# longer than many teams would, but needs no second kernel that adds their sums of columns.
_FEW_TILES = 4
_FEW_BYTES = 64 * 1024


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


H200 = Device(132, clusters=True, shared=227 * 1024)


@dataclass(frozen=True, slots=True)
class Team:
    """Threads that share a row: `lanes` of a warp, or, if that is 0, `cluster` blocks of `threads`.

    kept: chunks of a row that a thread has. at_once: rows that are reduced together. resident: blocks that a
    multiprocessor is to hold. floats: rows stay in registers until they are reduced. late: a tile's dx waits until the
    next tile was read.
    """

    kept: int
    lanes: int
    threads: int
    resident: int
    at_once: int = 1
    cluster: int = 1
    floats: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """How the kernel on tiles goes about the rows: what it's compiled for, and what it's told.

    singles: chunks are elements, else packs. stages: tiles that a block has room for. teams: as many as there is work
    for, or as the multiprocessors have room for. most_teams: as many as are worth it. tile_rows: rows of a tile. piece:
    columns of a block. tile_bytes, row_bytes: of a stage, for each matrix, and for each of the rows' statistics.
    shared: bytes of a block.
    """

    team: Team
    singles: bool
    stages: int
    teams: int
    most_teams: int
    tile_rows: int
    piece: int
    tile_bytes: int
    row_bytes: int
    shared: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, sums: int, device: Device) -> Plan | None:
        """None where rows are too long for it, or none. Whether it's worth it is another question."""
        if rows == 0 or columns == 0:
            return None
        row = _Row(columns, itemsize, sums)
        if row.chunks <= WARP * row.at_a_time:
            return cls._for(rows, row, *row.team_of_warp(rows, device), device)
        teams = map(row.team_of_blocks, row.clusters(rows, device))
        plans = (cls._for(rows, row, team, team.at_once, device) for team in teams if team is not None)
        return next((plan for plan in plans if plan is not None), None)

    @classmethod
    def _for(cls, rows: int, row: _Row, team: Team, tile_rows: int, device: Device) -> Plan | None:
        """With as many stages as there is room for; None if there is none for one."""
        piece = blocks(row.chunks, team.cluster) * row.size
        tile_bytes, row_bytes = row.tile_bytes(tile_rows * piece), row.row_bytes(tile_rows)
        stage = 2 * tile_bytes + row.sums * row_bytes
        reduction = 2 * team.at_once * row.sums * WARP * (_MOST_BLOCKS if team.cluster > 1 else 1) * FLOAT
        # What a block may have at most is what a multiprocessor has, but for what is reserved for one block.
        room = (device.shared + _RESERVED) // team.resident - _RESERVED - _BARRIERS - reduction
        stages = min(_MOST_STAGES, room // stage)
        if stages < 1:
            return None
        tiles = blocks(rows, tile_rows)
        teams = max(1, min(tiles, device.multiprocessors * team.resident // team.cluster))
        if tiles <= _FEW_TILES and rows * piece * row.itemsize <= _FEW_BYTES:
            teams = 1
        # In the end, warps of short rows add their sums of columns there.
        of_warps = team.threads // WARP * row.columns * FLOAT if team.lanes else 0
        shared = max(stages * stage, of_warps)
        most_teams = row.most_teams(rows, team)
        return cls(team, row.singles, stages, teams, most_teams, tile_rows, piece, tile_bytes, row_bytes, shared)

    def worth(self, teams: int) -> bool:
        """Whether it's worth it if so many teams run at a time; a device that is shared may have no room for one."""
        return 0 < teams <= self.most_teams

    @property
    def macros(self) -> dict[str, int]:
        """What norm_grad_tiles.cuh is to be compiled with."""
        return {
            "KEPT": self.team.kept,
            "LANES": self.team.lanes,
            "THREADS": self.team.threads,
            "AT_ONCE": self.team.at_once,
            "BLOCKS": self.team.resident,
            "CLUSTER": self.team.cluster,
            "FLOATS": int(self.team.floats),
            "LATE": int(self.team.late),
            "SINGLES": int(self.singles),
            "STAGES": self.stages,
        }


@dataclass(frozen=True, slots=True)
class _Row:
    """The rows of a case, which come in chunks of `size` elements: packs, or single ones where rows aren't packs."""

    columns: int
    itemsize: int
    sums: int

    @property
    def size(self) -> int:
        pack = PACK_BYTES // self.itemsize
        return 1 if self.columns % pack else pack

    @property
    def singles(self) -> bool:
        return self.size == 1

    @property
    def chunks(self) -> int:
        return self.columns // self.size

    @property
    def at_a_time(self) -> int:
        """Chunks that a thread reduces at a time."""
        return _THREAD_SINGLES if self.singles else _THREAD_PACKS

    @property
    def most(self) -> int:
        """Chunks of a row that a thread may have."""
        return _MOST_SINGLES if self.singles else _THREAD_COLUMNS // self.size

    def most_teams(self, rows: int, team: Team) -> int:
        """Teams whose sums of columns cost no more than to read dy and x again.

        Each team writes a float a column and sum, which is then read. Those of warps cost little: their rows are short.
        """
        if team.lanes:
            return rows
        return max(1, rows * self.itemsize // (self.sums * FLOAT))

    def tile_bytes(self, elements: int) -> int:
        """Packs that hold that many elements, wherever the first one stands in its pack."""
        before = PACK_BYTES // self.itemsize - 1 if self.singles else 0
        return blocks((before + elements) * self.itemsize, PACK_BYTES) * PACK_BYTES

    @staticmethod
    def row_bytes(tile_rows: int) -> int:
        """The same of a statistic of that many rows."""
        return blocks((PACK_BYTES // FLOAT - 1 + tile_rows) * FLOAT, PACK_BYTES) * PACK_BYTES

    def team_of_warp(self, rows: int, device: Device) -> tuple[Team, int]:
        """Lanes of a warp, and the rows of a tile: as many as make it large enough, if all blocks get one."""
        # Few packs a thread, since lanes find neighbouring packs faster; but single elements must share a row's costs.
        lanes = min(WARP, power_of_2_from(blocks(self.chunks, self.at_a_time) if self.singles else self.chunks))
        kept = blocks(self.chunks, lanes)
        team = Team(kept, lanes, _TEAM_BLOCK, RESIDENT_WITH_SUMS // _TEAM_BLOCK, floats=self.fits_as_floats(kept))
        at_a_time = _TEAM_BLOCK // lanes
        turns = _TILE_OF_WARPS // (at_a_time * (2 * self.columns * self.itemsize + self.sums * FLOAT))
        busy = blocks(rows, at_a_time * device.multiprocessors * team.resident)
        return team, max(1, min(turns, busy)) * at_a_time

    def clusters(self, rows: int, device: Device) -> list[int]:
        """Blocks that may share a row, those to be preferred first."""
        if not device.clusters:
            return [1]
        sizes = [1 << k for k in range(_MOST_BLOCKS.bit_length())]
        if rows <= _FEW_TILES:
            # Few rows are spread over more of the chip.
            wide = [size for size in sizes if self.chunks >= size * 2 * self.at_a_time * WARP]
            return wide[::-1] + [size for size in sizes if size not in wide]
        lean = [size for size in sizes if blocks(self.columns, size) <= RESIDENT_WITH_SUMS * _THREAD_FLOATS]
        return [*lean, _MOST_BLOCKS]

    def team_of_blocks(self, cluster: int) -> Team | None:
        """Of the threads' chunks only the last ones may be missing, in the cluster's last block too."""
        share = blocks(self.chunks, cluster)
        last = self.chunks - (cluster - 1) * share
        kept = max(_THREAD_SINGLES if self.singles else _FEWEST_PACKS, blocks(share, RESIDENT_WITH_SUMS))
        wanted = blocks(blocks(share, kept), WARP) * WARP
        for threads in (*range(wanted, RESIDENT_WITH_SUMS + 1, WARP), *range(wanted - WARP, 0, -WARP)):
            kept = blocks(share, threads)
            if kept <= self.most and (kept - 1) * threads < last:
                floats = self.fits_as_floats(kept)
                at_once = 1 if cluster > 1 or floats else max(1, min(2, self.at_a_time // kept))
                return Team(kept, 0, threads, RESIDENT_WITH_SUMS // threads, at_once, cluster, floats)
        return None

    def fits_as_floats(self, kept: int) -> bool:
        """Whether a thread's chunks of a row fit into its registers, beside the sums of their columns."""
        return kept * self.size <= _THREAD_FLOATS
