"""How the backwards of LayerNorm and RMSNorm work on tiles of rows. Twin of norm_grad_tiles.cuh.

A tile is some rows in shared memory. A stage is room for one tile. A team is the threads that share a row, in chunks: a
chunk is a pack of 16 bytes, or a single element where rows aren't whole packs. `sums` is how many sums a row or a
column has: 2 (LayerNorm), or 1 (RMSNorm).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.collection.ops.chip import MOST_BLOCKS, RESERVED, WARP, Chip
from harness.collection.ops.elementwise import PACK_BYTES, blocks, power_of_2_from
from harness.collection.ops.rows._wide_clusters import WIDE_BLOCKS, most_blocks

FLOAT = 4  # bytes
# Packs of a row of halves up to which a thread has one of them, by `sums`: the less arithmetic there is, the longer are
# the rows for which that pays. First where two rows share a reduction, then where a row has its own.
_SHARED_HALVES = {1: 1024, 2: 128}
_ALONE_HALVES = {1: 512, 2: 128}
RESIDENT_WITH_SUMS = 512  # threads of a multiprocessor, as in norm_grad.cuh

_TEAM_BLOCK = 128  # threads of a block, where lanes of a warp are a team
_TEAM_CHUNKS = 64  # packs of a row up to which lanes of a warp are a team
# Bytes of dy, x and statistics that a tile has at most where lanes of a warp are a team; a row for each team is the
# least, whatever its bytes. Three such tiles for each of four blocks fit into a multiprocessor.
_TILE_OF_WARPS = 33 * 512
_MOST_STAGES = 3  # with so many, blocks work on a tile while they wait for the sums of the one before
_BARRIERS = 1024  # bytes, more than enough for a block's barriers and for aligning them
_THREAD_COLUMNS = 32  # of a row that a thread may have, so that their sums fit into its registers
_THREAD_STEP = 16  # elements that a thread reduces at a time, of one row or of two
_FEWEST_THREADS = 96  # of a block, if a row has a pack for each
_MOST_THREADS = 1024  # of a block
# Threads of a multiprocessor that have work: with fewer of them, it holds more blocks, as long as no thread spills.
# Threads with half a step of a row may be twice as many, threads with packs of halves a few more. In float32 more
# blocks were faster on an H200 only where clusters had several blocks a multiprocessor.
_FEWEST_WORKING, _RESIDENT_HALVES = 400, 640
_BLOCK_BYTES = 16 * 1024  # of a row up to which a single block takes it, where clusters could take longer rows
# A cluster of 16 takes rows of so many bytes or more, by `sums`, and shorter rows that don't fit 8 blocks.
_WIDE_BYTES = {1: 250 * 1024, 2: 256 * 1024 + 1}
# Single elements of a row that a thread has at most: their addresses take registers, too. From 21 on the kernel of
# LayerNorm in float32 spills 24 to 64 bytes.
_MOST_SINGLES = 24
# A single team takes a matrix of so few tiles (or of so few rows, where the team is a cluster), if one of its blocks
# has at most so many bytes of it. It takes longer than many teams would, but needs no second kernel to add the sums of
# columns.
_FEW_TILES = 4
_FEW_BYTES = 64 * 1024
_FEWEST_SMALL, _SMALL_BYTES = 16, 2**20  # rows, and bytes of dy


@dataclass(frozen=True, slots=True)
class TeamShape:
    """The threads that share a row: `lanes` of a warp, or, if that is 0, `cluster` blocks of `threads`.

    kept: chunks of a row that a thread has. at_once: rows that are reduced together. resident: blocks that a
    multiprocessor is to hold. floats: whether rows stay in registers, as floats, until they are reduced.
    """

    kept: int
    lanes: int
    threads: int
    resident: int
    at_once: int = 1
    cluster: int = 1
    floats: bool = False

    def reduction_bytes(self, sums: int) -> int:
        """Bytes of shared memory for sums: sets that take turns, of a place for each warp, filled up with zeros."""
        if self.lanes:
            return 0
        values = self.at_once * sums
        group = WARP // values
        return (
            (4 if self.cluster > 1 else 2) * values * FLOAT * blocks(self.cluster * self.threads // WARP, group) * group
        )

    def stages(self, stage: int, sums: int, chip: Chip) -> int:
        """Tiles that a block has room for, of those it may want. stage: bytes of one; 0 where there is no room."""
        # A block may have all shared memory of a multiprocessor, but for what is reserved for one block.
        room = (chip.shared + RESERVED) // self.resident - RESERVED - _BARRIERS - self.reduction_bytes(sums)
        return max(0, min(_MOST_STAGES, room // stage))


@dataclass(frozen=True, slots=True)
class NormGradPlan:
    """How the kernel on tiles works on the rows: what it is compiled for, and its arguments.

    singles: whether chunks are single elements. stages: tiles that a block has room for. teams: the number that there
    is work for, or as the multiprocessors have room for. most_teams: with more of them, the kernels that spread rows
    are faster. tile_rows: rows of a tile. piece: columns of a block. tile_bytes, row_bytes: bytes of a stage for each
    matrix, and for each statistic of the rows. shared: bytes of a block's shared memory.
    """

    team: TeamShape
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
    def of(cls, rows: int, columns: int, itemsize: int, sums: int, chip: Chip) -> NormGradPlan | None:
        """The plan for a matrix; None where rows are too long, or where there are none. `worth` says if it pays.

        columns: of a row, of `itemsize` bytes each.
        """
        if rows == 0 or columns == 0:
            return None
        row = Row(columns, itemsize, sums)
        if row.fits_a_warp:
            return cls.on_tiles(rows, row, *row.team_of_warp(rows, chip), chip)
        teams = map(row.team_of_blocks, row.clusters(rows, chip))
        return next((plan for team in teams if team for plan in cls._of_blocks(rows, row, team, chip)), None)

    @classmethod
    def _of_blocks(cls, rows: int, row: Row, team: TeamShape, chip: Chip) -> Iterator[NormGradPlan]:
        """Plans with a block or a cluster as a team: with two rows at once where that pays, then with one."""
        two = cls.on_tiles(rows, row, team, team.at_once, chip)
        # It pays if the team wants them, there is room for all stages, and every team gets two rows.
        if two is not None and two.stages == _MOST_STAGES and blocks(rows, team.at_once) > two.teams:
            yield two
        alone = row.team_of_blocks(team.cluster, shared=False)
        one = cls.on_tiles(rows, row, replace(alone, at_once=1), 1, chip) if alone else None
        if one is not None:
            yield one

    @classmethod
    def on_tiles(cls, rows: int, row: Row, team: TeamShape, tile_rows: int, chip: Chip) -> NormGradPlan | None:
        """The plan with all stages that there is room for; None if there is room for none."""
        piece = blocks(row.chunks, team.cluster) * row.size
        tile_bytes, row_bytes = row.tile_bytes(tile_rows * piece), row.row_bytes(tile_rows)
        stage = 2 * tile_bytes + row.sums * row_bytes
        stages, fewest = team.stages(stage, row.sums, chip), _fewest_resident(team.threads)
        # More blocks were tried on an H200 alone, and where they leave room for all stages.
        if team.resident > fewest and (stages < _MOST_STAGES or most_blocks(chip) < WIDE_BLOCKS):
            team = replace(team, resident=fewest)
            stages = team.stages(stage, row.sums, chip)
        if stages < 1:
            return None
        if stages < _MOST_STAGES and team.cluster > 1 and not row.singles:
            stages = 1  # the next tile is in the L2 by then, and a second stage takes registers that long rows need
        tiles = blocks(rows, tile_rows)
        most_teams = row.most_teams(rows, team)
        teams = max(1, min(tiles, chip.multiprocessors * team.resident // team.cluster))
        if teams > most_teams:  # fewer teams, if a multiprocessor holds more blocks than it would have to
            teams = min(teams, max(most_teams, chip.multiprocessors * fewest // team.cluster))
        if (tiles if team.cluster == 1 else rows) <= _FEW_TILES and rows * piece * row.itemsize <= _FEW_BYTES:
            teams = 1
        # Lanes' teams add up their sums of columns in the same memory, when they are done with the tiles.
        of_warps = team.threads // WARP * row.columns * FLOAT if team.lanes else 0
        shared = max(stages * stage, of_warps)
        return cls(team, row.singles, stages, teams, most_teams, tile_rows, piece, tile_bytes, row_bytes, shared)

    def worth(self, teams: int) -> bool:
        """Whether the kernel on tiles is faster if so many teams run at a time. On a shared device none may run."""
        return 0 < teams <= self.most_teams

    @property
    def macros(self) -> dict[str, int]:
        """Macros that norm_grad_tiles.cuh is compiled with."""
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
class Row:
    """The rows of a case, which come in chunks of `size` elements: packs, or single elements."""

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
        """Whether rows come in packs of halves."""
        return self.itemsize < FLOAT and not self.singles

    @property
    def chunks(self) -> int:
        return self.columns // self.size

    @property
    def fits_a_warp(self) -> bool:
        """Whether lanes of a warp are a team."""
        return self.chunks <= (WARP * self.at_a_time if self.singles else _TEAM_CHUNKS)

    @property
    def at_a_time(self) -> int:
        """Chunks that a thread reduces at a time."""
        return _THREAD_STEP // self.size

    @property
    def most(self) -> int:
        """The most chunks of a row that a thread may have."""
        return _MOST_SINGLES if self.singles else _THREAD_COLUMNS // self.size

    def most_teams(self, rows: int, team: TeamShape) -> int:
        """The most teams whose sums of columns cost no more than another read of dy and x.

        Each team writes a float for each column and sum, which another kernel reads. Where lanes of a warp are a team
        rows are so short that this costs little. Of small matrices, the third kernel that spread rows take costs more.
        """
        if team.lanes or (rows >= _FEWEST_SMALL and rows * self.columns * self.itemsize <= _SMALL_BYTES):
            return rows
        return max(1, rows * self.itemsize // (self.sums * FLOAT))

    def tile_bytes(self, elements: int) -> int:
        """Bytes of the packs that hold so many elements, wherever the first one stands in its pack."""
        before = PACK_BYTES // self.itemsize - 1 if self.singles else 0
        return blocks((before + elements) * self.itemsize, PACK_BYTES) * PACK_BYTES

    @staticmethod
    def row_bytes(tile_rows: int) -> int:
        """Bytes of the packs that hold one statistic of so many rows."""
        return blocks((PACK_BYTES // FLOAT - 1 + tile_rows) * FLOAT, PACK_BYTES) * PACK_BYTES

    def team_of_warp(self, rows: int, chip: Chip) -> tuple[TeamShape, int]:
        """(team of lanes of a warp, rows of a tile): rows that make tiles large, if all blocks get one."""
        # A thread has few packs, since lanes that read neighbouring packs are faster. But of single elements, and of
        # halves in longer rows, it has more, so that the costs of a row are shared.
        share = self.at_a_time if self.singles or (self.halves and self.chunks > WARP // 2) else 1
        lanes = min(WARP, power_of_2_from(blocks(self.chunks, share)))
        kept = blocks(self.chunks, lanes)
        at_once = 1 if self.singles else max(1, min(2, self.at_a_time // kept))
        team = TeamShape(kept, lanes, _TEAM_BLOCK, RESIDENT_WITH_SUMS // _TEAM_BLOCK, at_once, floats=True)
        at_a_time = _TEAM_BLOCK // lanes * at_once
        turns = _TILE_OF_WARPS // (at_a_time * (2 * self.columns * self.itemsize + self.sums * FLOAT))
        busy = blocks(rows, at_a_time * chip.multiprocessors * team.resident)
        return team, max(1, min(turns, busy)) * at_a_time

    def clusters(self, rows: int, chip: Chip) -> list[int]:
        """Numbers of blocks that may share a row, the preferred ones first."""
        if not chip.clusters:
            return [1]
        sizes = [1 << k for k in range(MOST_BLOCKS.bit_length())]
        if rows <= _FEW_TILES:
            # Few rows are spread over more of the chip.
            wide = [size for size in sizes if self.chunks >= size * 2 * self.at_a_time * WARP]
            return wide[::-1] + [size for size in sizes if size not in wide]
        # Either one block, or many small ones: some blocks work while other blocks wait.
        size = self.columns * self.itemsize
        found = [1, MOST_BLOCKS] if size <= _BLOCK_BYTES else [MOST_BLOCKS]
        wide = [WIDE_BLOCKS] if most_blocks(chip) == WIDE_BLOCKS else []
        return wide + found if size >= _WIDE_BYTES[self.sums] else found + wide

    def team_of_blocks(self, cluster: int, *, shared: bool = True) -> TeamShape | None:
        """The team of so many blocks; None where a row is too long for it.

        shared: whether two rows may share a reduction. A thread may lack only its last chunk of a row, in the cluster's
        last block too.
        """
        share = blocks(self.chunks, cluster)
        last = self.chunks - (cluster - 1) * share
        kept = max(1, self.wanted(cluster, shared=shared) // self.size)
        if not self.singles:
            kept = max(1, min(kept, share // _FEWEST_THREADS))
        # Threads with so little of a row need few registers, so that more of them fit.
        small = kept * self.size <= _THREAD_STEP // 2 and share <= kept * _MOST_THREADS
        most = _MOST_THREADS if small else RESIDENT_WITH_SUMS
        # As many threads as have `kept` chunks each. If that is more than the most, these have more chunks.
        wanted = min(most, blocks(blocks(share, kept), WARP) * WARP)
        for threads in (*range(wanted, most + 1, WARP), *range(wanted - WARP, 0, -WARP)):
            kept = blocks(share, threads)
            if kept <= self.most and (kept - 1) * threads < last:
                return self.block_team(kept, threads, cluster)
        return None

    def block_team(self, kept: int, threads: int, cluster: int) -> TeamShape:
        resident = self.resident(kept, threads, cluster)
        if self.singles:
            return TeamShape(kept, 0, threads, resident, cluster=cluster, floats=kept <= _THREAD_STEP)
        # While a cluster waits for its sums, its multiprocessors have other blocks to work on, or else a second row.
        # Halves need so much arithmetic for their bytes that two rows always pay.
        two = self.step(cluster) >= 2 * kept * self.size or (cluster > 1 and (resident == 1 or self.halves))
        return TeamShape(kept, 0, threads, resident, 2 if two and self.sends(2, cluster) else 1, cluster)

    def sends(self, at_once: int, cluster: int) -> bool:
        """Whether a warp has a lane for each block that it sends sums to, and for each sum of so many rows."""
        return at_once * self.sums * cluster <= WARP

    def resident(self, kept: int, threads: int, cluster: int) -> int:
        """Blocks that a multiprocessor is to hold, as in TeamShape: more of them where few threads have work."""
        fewest = _fewest_resident(threads)
        working = blocks(blocks(self.chunks, cluster), kept)
        if fewest * working >= _FEWEST_WORKING or (self.itemsize == FLOAT and (cluster == 1 or fewest == 1)):
            return fewest
        most = RESIDENT_WITH_SUMS
        if kept * self.size <= _THREAD_STEP // 2:
            most = _MOST_THREADS
        elif self.halves:
            most = _RESIDENT_HALVES
        return max(fewest, min(blocks(RESIDENT_WITH_SUMS, working), most // threads))

    def step(self, cluster: int) -> int:
        """Elements that a thread should reduce at a time, as was fastest on an H200.

        With fewer elements there are more threads, some of which work while some wait, but also more sums to add for a
        row.
        """
        if self.sums == 2 and self.itemsize == FLOAT and cluster == 1 and not self.singles:
            return _THREAD_STEP // 2
        return _THREAD_STEP

    def longest_halved(self, cluster: int, *, shared: bool) -> int:
        """Packs of a row of halves up to which a thread has one of them. shared: as in team_of_blocks.

        Two blocks may have one for each thread, which only a search tries; more blocks have two.
        """
        if cluster == 1:
            return (_SHARED_HALVES if shared else _ALONE_HALVES)[self.sums]
        return cluster * _MOST_THREADS if cluster == 2 and shared else 0

    def wanted(self, cluster: int, *, shared: bool) -> int:
        """Elements of one row that a thread should have: a step, or half of one where two rows or more threads pay.

        shared: as in team_of_blocks.
        """
        if self.singles:
            half = cluster == 1
        elif self.halves:
            half = self.chunks <= self.longest_halved(cluster, shared=shared)
        else:
            half = self.sums == 1
        return self.step(cluster) // 2 if half else self.step(cluster)


def _fewest_resident(threads: int) -> int:
    """Blocks that a multiprocessor holds in any case. threads: of a block."""
    return max(1, RESIDENT_WITH_SUMS // threads)
