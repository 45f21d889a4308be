"""How the backwards of LayerNorm and RMSNorm go about rows that come in tiles. Twin of norm_grad_tiles.cuh.

`sums` is how many sums a row or a column has: 2 (LayerNorm), or 1 (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.ops._device import MOST_BLOCKS, RESERVED, WARP, Device
from harness.ops._elementwise import PACK_BYTES, blocks, power_of_2_from

FLOAT = 4  # bytes
# Packs of halves up to which two rows share a reduction, by how many sums it makes: the less arithmetic there is, the
# longer it pays.
_SHARED_HALVES = {1: 512, 2: 128}
RESIDENT_WITH_SUMS = 512  # as in norm_grad.cuh

_TEAM_BLOCK = 128  # threads, where lanes of a warp are a team
_TEAM_CHUNKS = 64  # packs of a row that is theirs
# Bytes of dy, x and statistics that a tile has at most where lanes of a warp are a team, but for a single row a team.
# Three of them for each of four blocks fit into a multiprocessor.
_TILE_OF_WARPS = 33 * 512
_MOST_STAGES = 3  # with so many, blocks work on a tile while they wait for the sums of the one before
_BARRIERS = 1024  # bytes, ample for a block's barriers and what aligns them
_THREAD_COLUMNS = 32  # of a row that a thread may have, for their sums to fit into its registers
_THREAD_STEP = 16  # elements that a thread reduces at a time, of one row or of two
_FEWEST_THREADS = 96  # of a block, if there are as many packs
_MOST_THREADS = 1024
_BLOCK_BYTES = 16 * 1024  # of a row that a single block takes, if a cluster can have longer ones
# Of a row that it has at most; their addresses take registers, too. From 21 on LayerNorm's floats spill 24 to 64 bytes.
_MOST_SINGLES = 24
# Matrices of a few tiles, or of as few rows for a cluster, go to a single team, if that has at most so many bytes of
# each in one of its blocks: it takes longer than many teams would, but needs no second kernel that adds their sums of
# columns.
_FEW_TILES = 4
_FEW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Team:
    """Threads that share a row: `lanes` of a warp, or, if that is 0, `cluster` blocks of `threads`.

    kept: chunks of a row that a thread has. at_once: rows that are reduced together. resident: blocks that a
    multiprocessor is to hold. floats: rows stay in registers until they are reduced.
    """

    kept: int
    lanes: int
    threads: int
    resident: int
    at_once: int = 1
    cluster: int = 1
    floats: bool = False

    def reduction_bytes(self, sums: int) -> int:
        """Of shared memory: sets of sums that take turns, with a place for each warp; groups of them end with zeros."""
        if self.lanes:
            return 0
        values = self.at_once * sums
        group = WARP // values
        return (
            (4 if self.cluster > 1 else 2) * values * FLOAT * blocks(self.cluster * self.threads // WARP, group) * group
        )


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
        if row.chunks <= (WARP * row.at_a_time if row.singles else _TEAM_CHUNKS):
            return cls._for(rows, row, *row.team_of_warp(rows, device), device)
        teams = map(row.team_of_blocks, row.clusters(rows, device))
        return next((plan for team in teams if team for plan in cls._of_blocks(rows, row, team, device)), None)

    @classmethod
    def _of_blocks(cls, rows: int, row: _Row, team: Team, device: Device) -> Iterator[Plan]:
        """With two rows at once, if the team wants them, stages have room and every team has some; else with one."""
        two = cls._for(rows, row, team, team.at_once, device)
        if two is not None and two.stages == _MOST_STAGES and blocks(rows, team.at_once) > two.teams:
            yield two
        one = cls._for(rows, row, replace(team, at_once=1), 1, device)
        if one is not None:
            yield one

    @classmethod
    def _for(cls, rows: int, row: _Row, team: Team, tile_rows: int, device: Device) -> Plan | None:
        """With as many stages as there is room for; None if there is none for one."""
        piece = blocks(row.chunks, team.cluster) * row.size
        tile_bytes, row_bytes = row.tile_bytes(tile_rows * piece), row.row_bytes(tile_rows)
        stage = 2 * tile_bytes + row.sums * row_bytes
        # What a block may have at most is what a multiprocessor has, but for what is reserved for one block.
        room = (device.shared + RESERVED) // team.resident - RESERVED - _BARRIERS - team.reduction_bytes(row.sums)
        stages = min(_MOST_STAGES, room // stage)
        if stages < 1:
            return None
        if stages < _MOST_STAGES and team.cluster > 1 and not row.singles:
            stages = 1  # the next tile is in the L2 by then, and a second stage takes registers that long rows need
        tiles = blocks(rows, tile_rows)
        teams = max(1, min(tiles, device.multiprocessors * team.resident // team.cluster))
        if (tiles if team.cluster == 1 else rows) <= _FEW_TILES and rows * piece * row.itemsize <= _FEW_BYTES:
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
    def halves(self) -> bool:
        """Whether they come in packs of halves."""
        return self.itemsize < FLOAT and not self.singles

    @property
    def chunks(self) -> int:
        return self.columns // self.size

    @property
    def at_a_time(self) -> int:
        """Chunks that a thread reduces at a time."""
        return _THREAD_STEP // self.size

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
        # Few packs a thread, since lanes find neighbouring packs faster; but single elements, and the halves of longer
        # rows, must share a row's costs.
        share = self.at_a_time if self.singles or (self.halves and self.chunks > WARP // 2) else 1
        lanes = min(WARP, power_of_2_from(blocks(self.chunks, share)))
        kept = blocks(self.chunks, lanes)
        at_once = 1 if self.singles else max(1, min(2, self.at_a_time // kept))
        team = Team(kept, lanes, _TEAM_BLOCK, RESIDENT_WITH_SUMS // _TEAM_BLOCK, at_once, floats=True)
        at_a_time = _TEAM_BLOCK // lanes * at_once
        turns = _TILE_OF_WARPS // (at_a_time * (2 * self.columns * self.itemsize + self.sums * FLOAT))
        busy = blocks(rows, at_a_time * device.multiprocessors * team.resident)
        return team, max(1, min(turns, busy)) * at_a_time

    def clusters(self, rows: int, device: Device) -> list[int]:
        """Blocks that may share a row, those to be preferred first."""
        if not device.clusters:
            return [1]
        sizes = [1 << k for k in range(MOST_BLOCKS.bit_length())]
        if rows <= _FEW_TILES:
            # Few rows are spread over more of the chip.
            wide = [size for size in sizes if self.chunks >= size * 2 * self.at_a_time * WARP]
            return wide[::-1] + [size for size in sizes if size not in wide]
        # Either one block, or many small ones, of which others work while some wait.
        return [1, MOST_BLOCKS] if self.columns * self.itemsize <= _BLOCK_BYTES else [MOST_BLOCKS]

    def team_of_blocks(self, cluster: int) -> Team | None:
        """Of the threads' chunks only the last ones may be missing, in the cluster's last block too."""
        share = blocks(self.chunks, cluster)
        last = self.chunks - (cluster - 1) * share
        kept = max(1, self.wanted(cluster) // self.size)
        if not self.singles:
            kept = max(1, min(kept, share // _FEWEST_THREADS))
        small = kept * self.size <= _THREAD_STEP // 2 and share <= kept * _MOST_THREADS  # that few registers are enough
        most = _MOST_THREADS if small else RESIDENT_WITH_SUMS
        # Where threads must have more than they should, there are as many as there may be.
        wanted = min(most, blocks(blocks(share, kept), WARP) * WARP)
        for threads in (*range(wanted, most + 1, WARP), *range(wanted - WARP, 0, -WARP)):
            kept = blocks(share, threads)
            if kept <= self.most and (kept - 1) * threads < last:
                return self.block_team(kept, threads, cluster)
        return None

    def block_team(self, kept: int, threads: int, cluster: int) -> Team:
        resident = max(1, RESIDENT_WITH_SUMS // threads)
        if self.singles:
            return Team(kept, 0, threads, resident, cluster=cluster, floats=kept <= _THREAD_STEP)
        # While a cluster waits for its sums, its multiprocessors have other blocks to work on, or else a second row. In
        # halves there is so much arithmetic for the bytes that two rows always pay.
        two = self.step(cluster) >= 2 * kept * self.size or (cluster > 1 and (resident == 1 or self.halves))
        return Team(kept, 0, threads, resident, 2 if two else 1, cluster)

    def step(self, cluster: int) -> int:
        """Elements that a thread should reduce at a time. What was fastest on an H200.

        With fewer there are more threads, which hide what others wait for, but more of their sums to add for a row.
        """
        if self.sums == 2 and self.itemsize == FLOAT and cluster == 1 and not self.singles:
            return _THREAD_STEP // 2
        return _THREAD_STEP

    def wanted(self, cluster: int) -> int:
        """Those of one row: in the rest of a step another row shares the reduction, or other threads its costs."""
        if self.singles:
            shared = cluster == 1
        elif self.halves:
            shared = cluster == 1 and self.chunks <= _SHARED_HALVES[self.sums]
        else:
            shared = self.sums == 1
        return self.step(cluster) // 2 if shared else self.step(cluster)
