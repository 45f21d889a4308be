"""What the backwards of LayerNorm and RMSNorm share: references, launches and plans. Twin of norm_grad.cuh.

An op has a mean and a dbeta (LayerNorm), or neither (RMSNorm). `sums` is how many sums a row or a column has: 2, or 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.model import Case, Work
from harness.ops import ITEMSIZE, Context, Launch, Symbols, Tensor, Tensors
from harness.ops._elementwise import BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel

DY = Tensor("dy", ("M", "N"))
DX = Tensor("dx", ("M", "N"))
DGAMMA = Tensor("dgamma", ("N",))
DBETA = Tensor("dbeta", ("N",))

_FLOAT = 4  # bytes
_GRID = 2**31 - 1
_GRID_Y = 2**16 - 1

# As in kernels/include/norm_grad.cuh.
_WARP = 32
_TOTAL_BLOCK = 1024
_SUM_BLOCK = 128
_SPREAD_BLOCK = 256
_RESIDENT = 512  # threads of a multiprocessor, where they keep sums of columns in up to 128 registers each

_GROUP_ROWS = 32  # that a group has at least, where groups of rows write sums of columns
_MOST_PARTS = 32  # of a row, each summed by a warp of its own
_PART_CHUNKS = 4 * _WARP  # that a part has at least

# Of `fused`:
_KEPT = 16  # elements of a row that a thread has
_LONGEST = _RESIDENT * _KEPT

# Of Plan:
_TEAM_BLOCK = 256  # threads, where lanes of a warp are a team
_TILE_BYTES = 33 * 1024  # of its stages
_STAGE_BYTES = 72 * 1024  # of a block's, up to which no more blocks share a row
_MOST_STAGES = 3
_MOST_BLOCKS = 8  # of a cluster, on every device that has them
_RESERVED = 1024  # bytes of shared memory that each block takes beside its own
_THREAD_PACKS = 4  # that a thread reduces at a time
_THREAD_COLUMNS = 32  # sums of columns that fit into a thread's registers
_FEWEST_PACKS = 2  # of a row that a thread of a block has: with one there would be as many reductions as packs
_THREAD_SINGLES = 16  # single elements that a thread reduces at a time
_MOST_SINGLES = 24  # of a row that it has at most; their addresses take registers, too
_SMALL = 64 * 1024  # bytes of a block's share of a matrix, up to which one team is enough
_SMALL_TILES = 4

_UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The most that a rounding changes a number, relative to it."""
_LEAST = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""The same of the smallest numbers, absolutely."""
_CHECKED = 2**24  # elements of a matrix that are checked at a time


# ---- References, in float64.


def make(ctx: Context, normalised: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    """Inputs: normal numbers, and the statistics that x really has."""
    import torch

    rows, columns = ctx.s.M, ctx.s.N
    shapes = {"dy": (rows, columns), "x": (rows, columns), "gamma": (columns,)}
    inputs: dict[str, Any] = {
        name: torch.randn(shape, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)
        for name, shape in shapes.items()
    }
    of_x = normalised(inputs["x"])
    names = [tensor.name for tensor in ctx.op.inputs]
    return inputs | {name: getattr(of_x, name).float() for name in ("mean", "rstd") if name in names}


@dataclass(slots=True)
class _Exact:
    """What rows of the inputs lead to.

    dy, xhat, g: (rows, N). terms: (rows, N), the terms of xhat if both were positive. rstd, mean_g (0 without a mean),
    mean_gx: (rows, 1).
    """

    dy: torch.Tensor
    xhat: torch.Tensor
    terms: torch.Tensor
    g: torch.Tensor
    rstd: torch.Tensor
    mean_g: torch.Tensor | float
    mean_gx: torch.Tensor

    @classmethod
    def of(cls, t: Tensors, part: slice = slice(None)) -> _Exact:
        dy, x, rstd = t.dy[part].double(), t.x[part].double(), t.rstd[part, None].double()
        has_mean = hasattr(t, "mean")
        mean = t.mean[part, None].double() if has_mean else rstd.new_zeros(rstd.shape)
        xhat, g = (x - mean) * rstd, dy * t.gamma.double()
        mean_g = g.mean(1, keepdim=True) if has_mean else 0.0
        return cls(dy, xhat, (x.abs() + mean.abs()) * rstd, g, rstd, mean_g, (g * xhat).mean(1, keepdim=True))

    @property
    def dx(self) -> torch.Tensor:
        return self.rstd * (self.g - self.mean_g - self.xhat * self.mean_gx)

    def allowance(self) -> torch.Tensor:
        """The error that dx may have before it is rounded to its dtype.

        Its three terms may be far larger than it is. Allowed are, times rstd:
        - 4 float32 units of each term;
        - for the sums 16 of what they would be if all that they add were positive: chains of k additions err by about
          0.2 * sqrt(k) units of it, and k is at most a few thousand.
        """
        unit = _UNIT["float32"]
        g, xhat = self.g.abs(), self.xhat.abs()
        of_sums = g.mean(1, keepdim=True) + xhat * (g * xhat).mean(1, keepdim=True)
        return self.rstd.abs() * unit * (4 * g + 20 * of_sums)

    def column_sums(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Of these rows: dgamma and dbeta, each with the sum of the squares of what it adds, as float32 may see it."""
        return {
            "dgamma": ((self.dy * self.xhat).sum(0), (self.dy * self.terms).square().sum(0)),
            "dbeta": (self.dy.sum(0), self.dy.square().sum(0)),
        }


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The op's outputs in float64."""
    exact = _Exact.of(t)
    every = {"dx": exact.dx} | {name: sums for name, (sums, _) in exact.column_sums().items()}
    return {tensor.name: every[tensor.name] for tensor in ctx.op.outputs}


def check(ctx: Context, t: Tensors) -> str | None:
    """Each dx must be as near to the reference as its terms allow, each sum of a column as near as its length does."""
    sums: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for part in _parts(ctx.s.M, ctx.s.N):
        exact = _Exact.of(t.before, part)
        if found := _complaint(ctx, f"dx from row {part.start} on", t.dx[part], exact.dx, exact.allowance()):
            return found
        for name, (total, squares) in exact.column_sums().items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + squares
    for name in ("dgamma", "dbeta"):
        if hasattr(t, name):
            # As of PReLU's d alpha: the terms' signs are random, so their sum is about the root of their squares' sum.
            total, squares = sums[name]
            if found := _complaint(ctx, name, getattr(t, name), total, 2.0**-16 * squares.sqrt()):
                return found
    return None


def _parts(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHECKED // columns)
    return (slice(first, first + step) for first in range(0, max(1, rows), step))


def _complaint(ctx: Context, name: str, got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> str | None:
    allowed = allowed + _UNIT[ctx.case.dtype] * want.abs() + _LEAST[ctx.case.dtype]
    wrong = ~((got.double() - want).abs() <= allowed)
    if not bool(wrong.any()):
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    values = f"{list(at)} is {got[at].item()}, the reference {want[at].item()} within {allowed[at].item():.3g}"
    return f"{name}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; {values}"


def traffic(dy: int, x: int) -> Callable[[Symbols, int], Work]:
    """Of a chain that reads dy and x so many times, and writes dx. Vectors and statistics don't count beside these."""

    def work(symbols: Symbols, itemsize: int) -> Work:
        elements = symbols["M"] * symbols["N"]
        read, written = (dy + x) * elements * itemsize, elements * itemsize
        return Work(read, written, flops=FLOPS * elements, items=symbols["M"], item="rows")

    return work


FLOPS = 12
"""An element, roughly: those of both sums, of dx, and of what columns add."""


# ---- Launches.


@dataclass(slots=True)
class _Case:
    """What the launches of a case need. sums: see above."""

    ctx: Context
    sums: int
    sizes: tuple[Any, Any]

    @classmethod
    def of(cls, ctx: Context) -> _Case:
        sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.N)
        return cls(ctx, len(ctx.op.outputs) - 1, sizes)

    @property
    def rows(self) -> int:
        return int(self.ctx.s.M)

    @property
    def columns(self) -> int:
        return int(self.ctx.s.N)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.ctx.case.dtype]

    @property
    def whole_packs(self) -> bool:
        """Whether a row is a number of packs."""
        return self.columns * self.itemsize % PACK_BYTES == 0

    def kernel(self, entry: str, **macros: int) -> Kernel:
        name = self.ctx.op.name
        return self.ctx.kernel(f"{name}.cu", f"{name}_{entry}", {"SCALAR": CUDA_TYPE[self.ctx.case.dtype], **macros})

    def floats(self, *shape: int) -> torch.Tensor:
        """Room for sums, which all sets of buffers share."""
        import torch

        return torch.empty(shape, dtype=torch.float32, device=self.ctx.device)


class _ColumnSums:
    """Room for `parts` partial sums of each column, and the kernel that adds them; neither where there is one part."""

    def __init__(self, case: _Case, parts: int) -> None:
        self.partial = case.floats(case.sums, parts, case.columns) if parts > 1 else None
        self._kernel = case.kernel("total") if parts > 1 else None
        self._grid = blocks(case.columns, _WARP), case.sums
        self._sizes = ctypes.c_uint32(parts), ctypes.c_uint32(case.columns)

    def of(self, which: int) -> torch.Tensor | None:
        """The room of dgamma's sums alone (0), or dbeta's (1)."""
        return None if self.partial is None else self.partial[which]

    def finish(self, t: Tensors) -> None:
        if self._kernel is not None:
            self._kernel(self._grid, _TOTAL_BLOCK, self.partial, *_results(t), *self._sizes)


def _statistics(t: Tensors) -> tuple[Any, ...]:
    return (t.mean, t.rstd) if hasattr(t, "mean") else (t.rstd,)


def _results(t: Tensors) -> tuple[Any, ...]:
    return (t.dgamma, t.dbeta) if hasattr(t, "dbeta") else (t.dgamma,)


def _inputs(t: Tensors) -> tuple[Any, ...]:
    return (t.dy, t.x, t.gamma, *_statistics(t))


def _groups(case: _Case, column_blocks: int, most_blocks: int) -> int:
    """Groups of rows that sum columns side by side: as many as keep the chip busy, if rows suffice."""
    wanted = most_blocks * cuda.multiprocessors() // max(1, column_blocks)
    return max(1, min(wanted, blocks(case.rows, _GROUP_ROWS), _GRID_Y))


def separate(ctx: Context) -> Launch:
    """A kernel for each output. Any size at any address."""
    case = _Case.of(ctx)
    column_blocks = blocks(case.columns, _WARP)
    groups = _groups(case, column_blocks, most_blocks=8)
    sums = _ColumnSums(case, groups)
    dx, dgamma = case.kernel("dx"), case.kernel("dgamma")
    dbeta = case.kernel("dbeta") if case.sums == 2 else None
    grid = column_blocks, groups

    def launch(t: Tensors) -> None:
        dx(min(case.rows, _GRID), BLOCK, *_inputs(t), t.dx, *case.sizes)
        dgamma(grid, BLOCK, t.dy, t.x, *_statistics(t), t.dgamma, sums.of(0), *case.sizes)
        if dbeta is not None:
            dbeta(grid, BLOCK, t.dy, t.dbeta, sums.of(1), *case.sizes)
        sums.finish(t)

    return launch


def too_long(case: Case) -> str | None:
    """Why `fused` can't run a case."""
    if case.symbols["N"] <= _LONGEST:
        return None
    return f"rows of up to {_LONGEST} columns only: their sums must fit into the registers of {_RESIDENT} threads"


def fused(ctx: Context) -> Launch:
    """Blocks that stay for many rows. Rows of up to 8192 elements, at any address."""
    case = _Case.of(ctx)
    threads = _WARP if case.columns <= _WARP * _KEPT else _RESIDENT
    grid = max(1, min(case.rows, cuda.multiprocessors() * _RESIDENT // threads))
    kernel, sums = case.kernel("fused", THREADS=threads, KEPT=_KEPT), _ColumnSums(case, grid)

    def launch(t: Tensors) -> None:
        kernel(grid, threads, *_inputs(t), t.dx, *_results(t), sums.partial, *case.sizes)
        sums.finish(t)

    return launch


def tuned(ctx: Context) -> Launch:
    """The kernel on tiles where there is a plan, else the one that spreads rows; `separate` at unaligned addresses."""
    case = _Case.of(ctx)
    device = Device(cuda.multiprocessors(), cuda.has_clusters(), cuda.shared_memory())
    plan = Plan.of(case.rows, case.columns, case.itemsize, case.sums, device)
    chosen = _spread(case) if plan is None else _on_tiles(case, plan)
    if plan is None and not case.whole_packs:
        return chosen
    fallback = separate(ctx)

    def launch(t: Tensors) -> None:
        if aligned(*_inputs(t), t.dx, *_results(t)):
            chosen(t)
        else:
            fallback(t)

    return launch


def _on_tiles(case: _Case, plan: Plan) -> Launch:
    team = plan.team
    kernel = case.kernel("tuned", **plan.macros)
    cluster = team.cluster if team.cluster > 1 else None
    resident = kernel.resident_clusters(team.threads, plan.shared, cluster) if cluster else plan.teams
    teams = min(plan.teams, resident)
    sums = _ColumnSums(case, teams)
    tiling = [ctypes.c_uint32(n) for n in (plan.tile_rows, plan.piece, plan.tile_bytes, plan.row_bytes)]

    def launch(t: Tensors) -> None:
        arguments = (*_inputs(t), t.dx, *_results(t), sums.partial, *case.sizes, *tiling)
        kernel(teams * team.cluster, team.threads, *arguments, shared=plan.shared, cluster=cluster)
        sums.finish(t)

    return launch


def _spread(case: _Case) -> Launch:
    """Sums of rows first, then the rest; at any address where rows aren't whole packs."""
    size = PACK_BYTES // case.itemsize if case.whole_packs else 1
    chunks = case.columns // size
    parts = max(1, min(_MOST_PARTS, chunks // _PART_CHUNKS))
    column_blocks = blocks(chunks, _WARP)
    groups = _groups(case, column_blocks, most_blocks=4)
    macros = {"SINGLES": int(size == 1)}
    rows, spread = case.kernel("rows", **macros), case.kernel("spread", **macros)
    sums, row_sums = _ColumnSums(case, groups), case.floats(case.rows, parts, case.sums)
    a_row = ctypes.c_uint32(parts)
    row_blocks = blocks(case.rows * parts, _SUM_BLOCK // _WARP)

    def launch(t: Tensors) -> None:
        rows(row_blocks, _SUM_BLOCK, *_inputs(t), row_sums, *case.sizes, a_row)
        arguments = (*_inputs(t), row_sums, t.dx, *_results(t), sums.partial, *case.sizes, a_row)
        spread((column_blocks, groups), _SPREAD_BLOCK, *arguments)
        sums.finish(t)

    return launch


# ---- Plans of the kernel on tiles.


@dataclass(frozen=True, slots=True)
class Device:
    """multiprocessors; whether blocks form clusters; bytes of shared memory that a block may have."""

    multiprocessors: int
    clusters: bool
    shared: int


@dataclass(frozen=True, slots=True)
class Team:
    """Threads that share a row: `lanes` of a warp, or, if that is 0, `cluster` blocks of `threads`.

    kept: chunks of a row that a thread has. at_once: rows that are reduced together.
    """

    kept: int
    lanes: int
    threads: int
    at_once: int = 1
    cluster: int = 1

    @property
    def blocks_a_multiprocessor(self) -> int:
        return _RESIDENT // self.threads


@dataclass(frozen=True, slots=True)
class Plan:
    """How the kernel on tiles goes about the rows: what it's compiled for, and what it's told.

    singles: chunks are elements, else packs. stages: tiles that a block has room for. teams: as many as there is work
    for, or as run at a time. tile_rows: rows of a tile. piece: columns of a block. tile_bytes, row_bytes: of a stage,
    for each matrix, and for each of the rows' statistics. shared: bytes of a block.
    """

    team: Team
    singles: bool
    stages: int
    teams: int
    tile_rows: int
    piece: int
    tile_bytes: int
    row_bytes: int
    shared: int

    @classmethod
    def of(cls, rows: int, columns: int, itemsize: int, sums: int, device: Device) -> Plan | None:
        """None where rows are too long for it, or too few to be worth the sums of columns that each team writes."""
        if rows == 0 or columns == 0:
            return None
        row = _Row(columns, itemsize, sums)
        if row.chunks <= _WARP * row.at_a_time:
            return cls._for(rows, row, *row.team_of_warp(rows, device), device)
        teams = map(row.team_of_blocks, row.clusters(rows, device))
        plans = (cls._for(rows, row, team, team.at_once, device) for team in teams if team is not None)
        plan = next((plan for plan in plans if plan is not None), None)
        return plan if plan is not None and plan._worth(rows, row) else None

    @classmethod
    def _for(cls, rows: int, row: _Row, team: Team, tile_rows: int, device: Device) -> Plan | None:
        """With as many stages as there is room for; None if there is none for one."""
        piece = blocks(row.chunks, team.cluster) * row.size
        tile_bytes, row_bytes = row.tile_bytes(tile_rows * piece), row.row_bytes(tile_rows)
        stage = 2 * tile_bytes + row.sums * row_bytes
        reduction = 2 * team.at_once * row.sums * _WARP * (_MOST_BLOCKS if team.cluster > 1 else 1) * _FLOAT
        room = (device.shared + _RESERVED) // team.blocks_a_multiprocessor - 2 * _RESERVED - reduction
        stages = min(_MOST_STAGES, room // stage)
        if stages < 1:
            return None
        tiles = blocks(rows, tile_rows)
        teams = max(1, min(tiles, device.multiprocessors * team.blocks_a_multiprocessor // team.cluster))
        if tiles <= _SMALL_TILES and rows * piece * row.itemsize <= _SMALL:
            teams = 1
        # In the end, warps of short rows add their sums of columns there.
        of_warps = team.threads // _WARP * row.columns * _FLOAT if team.lanes else 0
        shared = max(stages * stage, of_warps)
        return cls(team, row.singles, stages, teams, tile_rows, piece, tile_bytes, row_bytes, shared)

    def _worth(self, rows: int, row: _Row) -> bool:
        """Whether a float a column and sum, written and read for each team, costs less than to read dy and x again."""
        return self.teams == 1 or 2 * row.sums * self.teams * _FLOAT <= 2 * rows * row.itemsize

    @property
    def macros(self) -> dict[str, int]:
        """What norm_grad.cuh is to be compiled with."""
        return {
            "KEPT": self.team.kept,
            "LANES": self.team.lanes,
            "THREADS": self.team.threads,
            "AT_ONCE": self.team.at_once,
            "CLUSTER": int(self.team.cluster > 1),
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

    def tile_bytes(self, elements: int) -> int:
        """Packs that hold that many elements, wherever the first one stands in its pack."""
        before = PACK_BYTES // self.itemsize - 1 if self.singles else 0
        return blocks((before + elements) * self.itemsize, PACK_BYTES) * PACK_BYTES

    @staticmethod
    def row_bytes(tile_rows: int) -> int:
        """The same of a statistic of that many rows."""
        return blocks((PACK_BYTES // _FLOAT - 1 + tile_rows) * _FLOAT, PACK_BYTES) * PACK_BYTES

    def team_of_warp(self, rows: int, device: Device) -> tuple[Team, int]:
        """Lanes of a warp, and the rows of a tile: as many as make it large enough, if all blocks get one."""
        # Few packs a thread, since lanes find neighbouring packs faster; but single elements must share a row's costs.
        lanes = min(_WARP, _power_of_2_from(blocks(self.chunks, self.at_a_time) if self.singles else self.chunks))
        team = Team(blocks(self.chunks, lanes), lanes, _TEAM_BLOCK)
        at_a_time = _TEAM_BLOCK // lanes
        turns = _TILE_BYTES // (at_a_time * (2 * self.columns * self.itemsize + self.sums * _FLOAT))
        busy = blocks(rows, at_a_time * device.multiprocessors * team.blocks_a_multiprocessor)
        return team, max(1, min(turns, busy)) * at_a_time

    def clusters(self, rows: int, device: Device) -> list[int]:
        """Blocks that may share a row, those to be preferred first."""
        if not device.clusters:
            return [1]
        sizes = [1 << k for k in range(_MOST_BLOCKS.bit_length())]
        if rows <= _SMALL_TILES:
            # Few rows are spread over more of the chip.
            wide = [size for size in sizes if self.chunks >= size * 2 * self.at_a_time * _WARP]
            return wide[::-1] + [size for size in sizes if size not in wide]
        lean = [size for size in sizes if 2 * blocks(self.columns, size) * self.itemsize <= _STAGE_BYTES]
        return [*lean, _MOST_BLOCKS]

    def team_of_blocks(self, cluster: int) -> Team | None:
        """Of the threads' chunks only the last ones may be missing, in the cluster's last block too."""
        share = blocks(self.chunks, cluster)
        last = self.chunks - (cluster - 1) * share
        kept = max(_THREAD_SINGLES if self.singles else _FEWEST_PACKS, blocks(share, _RESIDENT))
        wanted = blocks(blocks(share, kept), _WARP) * _WARP
        for threads in (*range(wanted, _RESIDENT + 1, _WARP), *range(wanted - _WARP, 0, -_WARP)):
            kept = blocks(share, threads)
            if kept <= self.most and (kept - 1) * threads < last:
                return Team(kept, 0, threads, 1 if cluster > 1 else max(1, self.at_a_time // kept), cluster)
        return None


def _power_of_2_from(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
