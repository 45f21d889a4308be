"""Row reductions on the host: which threads share a row, and how much of it each keeps. Twin of rows.cuh.

A matrix is (M, N), contiguous. `tuned` variants keep a row in the registers of a team, so that it is read from memory
once. A team is the threads that share a row: lanes of a warp, a block, or a cluster of blocks. A pack is 16 bytes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.collection.ops.chip import H200, MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, aligned, blocks, power_of_2_from
from harness.ops import ITEMSIZE, Context, Launch, Symbols, Tensors

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel

_BLOCK = 128  # threads, where a block has several rows
# Columns of a row up to which rows that aren't whole packs come through a tile in shared memory; by bytes an element.
_TILE_COLUMNS = {4: 256, 2: 127}
_FEWEST_LANES = 16  # of a row that begins inside of packs: each of its single elements has a lane
_TILE_ELEMENTS = 8  # of a row in a tile that a thread has at most
_TILE_ELEMENTS_WITH_VECTORS = 16  # the same where rows share vectors: their statistics take longer
_TILE_BYTES = 8192  # of one matrix; several blocks of such tiles keep the memory busy

# Packs a thread, as measured on an H200. Two loads in flight in each of many threads are best as long as several rows
# fit on a multiprocessor. Longer rows are cut among the blocks of a cluster, so that several fit again. There a thread
# takes more packs: of halves, all that its registers hold.
_WARP_PACKS = 2
# (packs a thread, most packs of a row, or of a block's part of it), by the number of matrices that a thread keeps.
_FEW_PACKS = {1: ((2, 1024), (3, 2112)), 2: ((2, 256), (1, 1024), (3, 2112))}
_MORE_PACKS = {4: ((3, 1056), (4, 2112)), 2: ()}  # the same in clusters, by bytes an element
_MOST_PACKS = 8  # of a thread, of all matrices together
_MOST_ELEMENTS = 2**15  # of a block: 1024 threads with 32 each, or 512 with 64, leave registers to work with
_UNSHARED = 2112  # packs of a row up to which one block takes it, rather than a cluster
_FEWEST_SPLIT = 24 * WARP  # packs of a row from which on blocks share it where rows are few
_TWO_FIT = 576  # threads of blocks of two matrices of which two fit on a multiprocessor; beyond, few large ones
_FOUR_BLOCKS = 8192  # packs of a row of one matrix up to which four blocks are enough; longer rows take MOST_BLOCKS
# Blocks where rows share vectors: (most packs of a row, packs a thread, rows together, most threads), by bytes an
# element.
_WITH_VECTORS = {
    4: ((512, 2, 1, 1024), (1024, 2, 2, 512), (2112, 4, 1, 1024), (4096, 4, 2, 512), (math.inf, 8, 1, 512)),
    2: ((512, 2, 2, 512), (2112, 4, 1, 1024), (math.inf, 8, 1, 256)),
}
# The same of a norm's halves where there are clusters, by the number of vectors: with two, only two blocks of more than
# 320 threads would fit on a multiprocessor, so smaller blocks share a row, or two rows where registers suffice. The
# other plans with two rows are of searches on an H200, which no committed run has.
_HALVES_IN_CLUSTERS = {
    1: ((512, 2, 2, 512), (832, 4, 1, 1024), (1056, 2, 2, 224), (2112, 4, 1, 1024), (math.inf, 8, 1, 256)),
    2: (
        (512, 2, 2, 512),
        (1280, 4, 1, 1024),
        (1536, 4, 1, 264),
        (1792, 4, 2, 264),
        (2112, 4, 1, 264),
        (math.inf, 8, 1, 256),
    ),
}
_FEW_WITH_VECTORS = 2 * WARP  # packs of a row up to which lanes of a warp take it
_LANE_PACKS = 4  # of a thread, of all rows that lanes of a warp work on at once
_THREE = 3  # packs of halves of a lane that has one row, where rows share vectors and nearly all lanes have so many
_NEARLY = 0.8
_FEWEST_OF_THREE = {1: 4, 2: 8}  # lanes, by the number of vectors: fewer read too few neighbouring packs at a time
# Packs of halves that all lanes have of one row, while vectors wait in shared memory, and the fewest lanes. A block has
# about a thread for each pack of a vector, within these limits, so that vectors are there soon.
_MANY, _FEWEST_OF_MANY = (5, 7), 8
_BLOCK_OF_MANY = 4 * WARP, 8 * WARP
_LANE_BLOCK = 2 * WARP  # threads
_SHORT_FLOATS = 8  # packs of a row of float32 up to which two rows at once are enough
# Bytes of a matrix up to which its lines are the first that caches give up, where rows are whole packs: of lanes of a
# warp, and of blocks. In a trial on an H200, which no committed run has, tens of megabytes gained some percent. Larger
# matrices gained nothing with blocks, and lost with lanes.
_STREAMED_LANES, _STREAMED_BLOCKS = 64 * 2**20, 192 * 2**20
_RAGGED_WITH_VECTORS = 4 * WARP  # packs of halves up to which a warp takes a row that begins inside of packs
# Rows so many apart begin at the same place of a pack, whatever their length. As in norm_planned.cuh.
_ALIKE = 8
_ALIKE_BLOCK = 1024  # packs of a row up to which a block takes two such rows that share two vectors
_EARLY = 512  # threads of a multiprocessor, up to which a thread has registers for vectors besides its row
_MOST_EARLY = {True: 4, False: 2}  # packs of a thread then, where blocks have at most so many threads, or more
_FEWEST_ALIKE = 4  # blocks a multiprocessor, at one row a team, from which on rows are many


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Which teams work on the rows: what the kernel is compiled for, and how many blocks it takes.

    count: packs a thread (of a tile: elements). lanes: threads of a warp that share a row; 0 where `cluster` blocks of
    `threads` share it. ragged: rows begin inside of packs. tile_rows: rows of a tile in shared memory, 0 without one.
    together: rows that a team works on at once. early: vectors that rows share are loaded with a row, not after its
    sums.
    """

    count: int
    lanes: int
    threads: int
    cluster: int = 1
    ragged: bool = False
    tile_rows: int = 0
    together: int = 1
    early: bool = False

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, chip: Chip, matrices: int = 1) -> RowPlan | None:
        """The plan for (rows, columns) of elements of `itemsize` bytes; None where a row is too long for registers.

        matrices: how many there are of which a thread keeps its part of a row.
        """
        size = PACK_BYTES // itemsize
        ragged, packs = columns % size != 0, columns // size
        if ragged and columns <= _TILE_COLUMNS[itemsize]:
            return cls._tile(columns, itemsize)
        if packs <= WARP * _WARP_PACKS:
            lanes = min(WARP, power_of_2_from(packs))
            if ragged:
                lanes = max(_FEWEST_LANES, power_of_2_from(blocks(packs, _WARP_PACKS)))
            return cls(max(1, blocks(packs, lanes)), lanes, _BLOCK, ragged=ragged)
        return cls._blocks(rows, packs, itemsize, chip, matrices=matrices, ragged=ragged)

    @classmethod
    def with_vectors(  # noqa: PLR0913 - what `of` has
        cls, rows: int, columns: int, itemsize: int, chip: Chip, vectors: int = 2, *, norm: bool = False
    ) -> RowPlan | None:
        """The plan where rows share vectors (N), such as gamma: a vector is loaded once for some rows where that pays.

        Vectors come from the L1 or the L2 again and again, so a block takes as much of a row as it can. norm: whether
        the kernel is the one of norm_planned.cuh, which may keep vectors in shared memory.
        """
        size = PACK_BYTES // itemsize
        packs = columns // size
        if columns % size and columns <= _TILE_COLUMNS[4]:
            # Floats with one vector need so little arithmetic that memory waits for more threads (197 columns).
            more_threads = vectors == 1 and itemsize == 4 and columns > _TILE_COLUMNS[2]
            return cls._tile(columns, itemsize, _TILE_ELEMENTS if more_threads else _TILE_ELEMENTS_WITH_VECTORS)
        plain = cls.of(rows, columns, itemsize, chip)
        if plain is None or rows * plain.cluster <= chip.multiprocessors:
            return plain
        if columns % size:
            many = norm and vectors > 1 and rows * plain.cluster >= _FEWEST_ALIKE * chip.multiprocessors
            # Rows share vectors, but no packs of them, since rows begin at different places of a pack.
            a_warp = itemsize == 2 and packs <= _RAGGED_WITH_VECTORS
            alone = cls(blocks(packs, WARP), WARP, _BLOCK, ragged=True) if a_warp else plain
            return (many and cls._alike(packs, itemsize)) or alone
        lanes = cls._lanes_with_vectors(packs, itemsize, vectors, norm=norm)
        if lanes:
            return lanes
        cuts = _HALVES_IN_CLUSTERS[vectors] if norm and itemsize == 2 and chip.clusters else _WITH_VECTORS[itemsize]
        # Where each row can have a multiprocessor, two rows gain nothing from shared vectors, and wait for each other.
        most_together = 2 if rows > chip.multiprocessors else 1
        count, together, most_threads = next(
            choice for up_to, *choice in cuts if packs <= up_to and choice[1] <= most_together
        )
        cluster = power_of_2_from(blocks(packs, count * most_threads))
        if cluster > (MOST_BLOCKS if chip.clusters else 1):
            return plain
        threads = blocks(blocks(packs, cluster * count), WARP) * WARP
        return cls(count, 0, threads, cluster, together=together)

    @classmethod
    def _lanes_with_vectors(cls, packs: int, itemsize: int, vectors: int, *, norm: bool) -> RowPlan | None:
        """The plan by lanes of a warp for rows that share vectors; None for longer rows. norm: as in with_vectors."""
        many = cls._many_packs(packs) if norm and itemsize == 2 else None
        if many:
            return many
        three = _lanes_of_three(packs, vectors) if itemsize == 2 else 0
        if three:
            return cls(_THREE, three, _LANE_BLOCK)
        if packs > _FEW_WITH_VECTORS:
            return None
        count = blocks(packs, WARP)
        together = 2 if itemsize == 4 and packs <= _SHORT_FLOATS else _LANE_PACKS // count
        return cls(count, min(WARP, power_of_2_from(packs)), _LANE_BLOCK, together=together)

    @classmethod
    def _many_packs(cls, packs: int) -> RowPlan | None:
        """The plan for rows of which all lanes have many packs."""
        for count in _MANY:
            lanes, rest = divmod(packs, count)
            if not rest and _FEWEST_OF_MANY <= lanes <= WARP and lanes == power_of_2_from(lanes):
                fewest, most = _BLOCK_OF_MANY
                return cls(count, lanes, max(fewest, min(power_of_2_from(packs), most)))
        return None

    @classmethod
    def _tile(cls, columns: int, itemsize: int, elements: int = _TILE_ELEMENTS) -> RowPlan:
        """The plan for rows that come through a tile. elements: how many of a row a thread has at most."""
        lanes = power_of_2_from(blocks(columns, elements))
        size = PACK_BYTES // itemsize
        # The more elements of a row a thread has, the more rows a tile has, so that all threads have a row.
        tile_bytes = _TILE_BYTES * (elements // _TILE_ELEMENTS if lanes > 1 else 1)
        rows = max(1, tile_bytes // (columns * itemsize * size)) * size
        return cls(blocks(columns, lanes), lanes, _BLOCK, tile_rows=rows)

    @classmethod
    def _blocks(  # noqa: PLR0913 - what `of` has
        cls, rows: int, packs: int, itemsize: int, chip: Chip, *, matrices: int, ragged: bool
    ) -> RowPlan | None:
        most = _MOST_PACKS // matrices
        cluster = cls._cluster(packs, itemsize, matrices) if chip.clusters and packs > _UNSHARED else 1
        # Few rows are spread over more of the chip. Blocks that share a shorter row take longer to exchange their sums
        # than they save.
        most_blocks = MOST_BLOCKS if chip.clusters and packs >= _FEWEST_SPLIT else cluster
        while cluster < most_blocks and rows * cluster < chip.multiprocessors and packs >= 4 * WARP * cluster:
            cluster = min(most_blocks, 2 * cluster)
        share, most_threads = blocks(packs, cluster), min(1024, _MOST_ELEMENTS * itemsize // (PACK_BYTES * most))
        if share > most * most_threads:
            return None
        if rows * cluster <= chip.multiprocessors:
            count = blocks(share, most_threads)
        elif ragged and cluster == MOST_BLOCKS:
            # Rows that begin inside of packs take more registers, which leaves room for fewer blocks in any case.
            count = most
        else:
            counts = _FEW_PACKS[matrices] if cluster == 1 else _MORE_PACKS[itemsize]
            count = next((count for count, up_to in counts if share <= up_to), most)
        threads = blocks(blocks(share, count), WARP) * WARP
        return cls(count, 0, threads, cluster, ragged=ragged)

    @classmethod
    def _cluster(cls, packs: int, itemsize: int, matrices: int) -> int:
        """Blocks of a cluster that share a row which is too long for one block."""
        if itemsize == 2 and matrices == 1:
            # Each thread has all that it can; blocks have _BLOCK threads, or more where eight such blocks have too few.
            block = _MOST_PACKS * _BLOCK
            return blocks(packs, block * power_of_2_from(blocks(packs, block * MOST_BLOCKS)))
        if matrices == 2 and packs > MOST_BLOCKS * _MOST_PACKS // matrices * _TWO_FIT:
            return min(MOST_BLOCKS, blocks(packs, _MOST_PACKS // matrices * 1024))
        return 4 if packs <= _FOUR_BLOCKS * matrices else MOST_BLOCKS

    @classmethod
    def _alike(cls, packs: int, itemsize: int) -> RowPlan | None:
        """The plan for many rows that begin inside of packs and share two vectors; None where they are too long.

        A team has two rows that begin alike, so that it loads and shifts the vectors once for both.
        """
        if packs <= (_RAGGED_WITH_VECTORS if itemsize == 2 else WARP * _WARP_PACKS):
            return cls(blocks(packs, WARP), WARP, _BLOCK, ragged=True, together=2)
        return cls(2, 0, WARP * blocks(packs, 2 * WARP), ragged=True, together=2) if packs <= _ALIKE_BLOCK else None

    @property
    def macros(self) -> dict[str, str | int]:
        """Macros that rows.cuh is compiled with."""
        return {
            "COUNT": self.count,
            "LANES": self.lanes,
            "THREADS": self.threads,
            "CLUSTER": int(self.cluster > 1),
            "RAGGED": int(self.ragged),
            "TILE": int(self.tile_rows > 0),
            "TOGETHER": self.together,
            **({"EARLY": 1} if self.early else {}),
        }

    def holds(self, columns: int, itemsize: int) -> bool:
        """Whether a row of `columns` elements fills all packs that the threads of a team have room for."""
        team = self.lanes or self.threads * self.cluster
        return self.count * team * PACK_BYTES == columns * itemsize

    @property
    def may_be_early(self) -> bool:
        """Whether vectors may be loaded with a row, for which a thread needs registers.

        Rows that begin inside of packs have packs of vectors shifted, which waits for each of them in any case.
        """
        return not (self.lanes or self.ragged) and self.count * self.together <= _MOST_EARLY[self.threads <= _EARLY]

    def with_few_early(self, rows: int, chip: Chip) -> RowPlan:
        """The plan, early where all rows run at once: a multiprocessor has few other threads that hide loads then."""
        few = self.grid(rows) <= chip.multiprocessors * max(1, _EARLY // self.threads)
        return replace(self, early=few and self.may_be_early)

    def streams(self, rows: int, columns: int, itemsize: int) -> bool:
        """Whether the lines of a matrix are the first that caches give up: the macro STREAM."""
        most = 0 if self.ragged or self.tile_rows else _STREAMED_LANES if self.lanes else _STREAMED_BLOCKS
        return rows * columns * itemsize <= most

    def grid(self, rows: int) -> int:
        """Blocks for so many rows."""
        if self.tile_rows:
            return blocks(rows, self.tile_rows)
        teams = blocks(rows, self.together)
        if self.ragged and self.together > 1:
            teams = blocks(rows, self.together * _ALIKE) * _ALIKE
        return blocks(teams, self.threads // self.lanes) if self.lanes else teams * self.cluster


def _lanes_of_three(packs: int, vectors: int) -> int:
    """Lanes of a warp that nearly all have three packs of a row; 0 where there are no such."""
    lanes = power_of_2_from(blocks(packs, _THREE))
    return lanes if _FEWEST_OF_THREE[vectors] <= lanes <= WARP and packs >= _NEARLY * _THREE * lanes else 0


class RowKernel:
    """The kernel `<op>_tuned` of an op with the sizes M and N, compiled and launched as its plan says.

    The kernel's parameters are tensors, then `long long rows, unsigned columns, unsigned tile_rows, unsigned aligned`.
    The last one tells whether all of the tensors are aligned to packs.
    """

    def __init__(self, ctx: Context, plan: RowPlan, matrices: int, **macros: int) -> None:
        """Compile it. matrices: how many have a tile in shared memory. macros: besides the plan's."""
        itemsize = ITEMSIZE[ctx.case.dtype]
        self._plan = plan
        op, scalar = ctx.case.op, CUDA_TYPE[ctx.case.dtype]
        self._kernel: Kernel = ctx.kernel(f"{op}.cu", f"{op}_tuned", {"SCALAR": scalar, **plan.macros, **macros})
        self._grid = plan.grid(ctx.s.M)
        self._sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N), ctypes.c_uint32(plan.tile_rows)
        self._shared = matrices * plan.tile_rows * ctx.s.N * itemsize
        self._cluster = plan.cluster if plan.cluster > 1 else None

    def __call__(self, *arguments: torch.Tensor) -> bool:
        """Launch the kernel if it can work at these addresses. Tells whether it was launched."""
        whole = aligned(*arguments)
        if not (whole or self._plan.tile_rows):
            return False
        sizes = *self._sizes, ctypes.c_uint32(whole)
        self._kernel(self._grid, self._plan.threads, *arguments, *sizes, shared=self._shared, cluster=self._cluster)
        return True


Arguments = Callable[[Tensors], tuple[Any, ...]]
"""Gives a case's tensors in the order of a kernel's parameters."""


def planned(  # noqa: PLR0913 - what a launch needs
    ctx: Context, plan: RowPlan | None, fallback: Launch, arguments: Arguments, *, kept: int = 1, vectors: int = 0
) -> Launch:
    """The kernel `<op>_tuned` as the plan has it.

    `fallback` runs instead where there is no plan, or where tensors aren't aligned as the plan needs. kept: how many
    matrices a thread keeps its part of a row of. vectors: how many (N) rows share.
    """
    if plan is None:
        return fallback
    itemsize = ITEMSIZE[ctx.case.dtype]
    whole = {"WHOLE": int(plan.holds(ctx.s.N, itemsize))} if vectors else {}
    kernel = RowKernel(ctx, plan, kept, **whole, STREAM=int(plan.streams(ctx.s.M, ctx.s.N, itemsize)))

    def launch(t: Tensors) -> None:
        if not kernel(*arguments(t)):
            fallback(t)

    return launch


def has_plan(symbols: Symbols, itemsize: int, kept: int = 1) -> bool:
    """Whether rows fit into registers, for the traffic of a case. kept: as in `planned`.

    The answer is that for an H200, whatever the device. Devices without clusters use the fallback for shorter rows too.
    """
    return RowPlan.of(symbols["M"], symbols["N"], itemsize, H200, kept) is not None
