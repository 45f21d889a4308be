"""What the backwards of LayerNorm and RMSNorm share: declarations, traffic and launches. Twin of norm_grad.cuh.

LayerNorm has a mean and a dbeta, RMSNorm neither. `sums` is how many sums a row or a column has: 2, or 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.chip import H200, MOST_BLOCKS, WARP, Chip
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.collection.ops.row_parts import MOST_ROWS
from harness.collection.ops.rows._norm_grad_beside import BesidePlan
from harness.collection.ops.rows._norm_grad_plan import RESIDENT_WITH_SUMS, NormGradPlan
from harness.collection.ops.rows._norm_grad_tuning import beside_plan, narrower, tiles_plan
from harness.collection.ops.rows._wide_clusters import resident_clusters
from harness.errors import MachineError
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Context, Launch, Plan, Symbols, Tensor, Tensors

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel

DY = Tensor("dy", ("M", "N"))
DX = Tensor("dx", ("M", "N"))
DGAMMA = Tensor("dgamma", ("N",))
DBETA = Tensor("dbeta", ("N",))

_GRID = 2**31 - 1  # blocks along x
_COLUMNS = 2**31  # a row has fewer columns, so that kernels can count them in 32 bits

# Threads of blocks, as in norm_grad_total.cuh and norm_grad_spread.cuh.
_TOTAL_BLOCK = 1024
_TOTAL_COLUMNS = 8  # of a team that adds partial sums
_TOTAL_AHEAD = 8  # partial sums that a thread loads before it adds them
_TOTAL_TEAMS = 256  # threads of a block that several teams share
_RESIDENT_BLOCKS = 32  # that a multiprocessor runs at a time
_SUM_BLOCK = 128
_SPREAD_BLOCK = 256

_GROUP_ROWS = 32  # rows of a group at least, where groups of rows write sums of columns
_MOST_PARTS = 32  # parts of a row, each summed by a warp of its own
_PART_CHUNKS = 4 * WARP  # chunks of a part at least
_KEPT = 16  # elements of a row that a thread of `fused` has
_LONGEST = RESIDENT_WITH_SUMS * _KEPT  # elements of a row of `fused`


def traffic(dy: int, x: int) -> Callable[[Symbols, int], Traffic]:
    """The traffic of a variant that reads dy and x so many times and writes dx.

    Vectors and statistics are left out: beside matrices they are little.
    """

    def moved(symbols: Symbols, itemsize: int) -> Traffic:
        matrix = symbols["M"] * symbols["N"] * itemsize
        return Traffic((dy + x) * matrix, matrix)

    return moved


def tuned_traffic(sums: int) -> Callable[[Symbols, int], Traffic]:
    """The traffic of `tuned`: it reads dy and x once, but twice where it spreads rows.

    The plan for the current device decides which of these it does; without a device, the plan for an H200. Rows beside
    columns are read twice at the same time, so the second read comes from the L2 and isn't counted. All of the plan's
    clusters are assumed to run at a time, and tensors to be aligned.
    """

    def moved(symbols: Symbols, itemsize: int) -> Traffic:
        import torch

        chip = Chip.current() if torch.cuda.is_available() else H200
        plan = NormGradPlan.of(symbols["M"], symbols["N"], itemsize, sums, chip)
        beside = BesidePlan.by_rule(symbols["M"], symbols["N"], itemsize, chip)
        reads = 1 if beside or (plan is not None and plan.worth(plan.teams)) else 2
        return traffic(dy=reads, x=reads)(symbols, itemsize)

    return moved


# ---- Launches.


@dataclass(slots=True)
class _GradCase:
    """What the launches of a case need. sums: of a row, and of a column."""

    ctx: Context
    sums: int
    sizes: tuple[Any, Any]

    @classmethod
    def of(cls, ctx: Context) -> _GradCase:
        """The case of a context. An op has dx, and one other output for each sum."""
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
        """Whether a row is a whole number of packs."""
        return self.columns * self.itemsize % PACK_BYTES == 0

    @property
    def file(self) -> str:
        return f"{self.ctx.op.name}.cu"

    def entry(self, name: str) -> str:
        return f"{self.ctx.op.name}_{name}"

    def macros(self, macros: dict[str, int]) -> dict[str, str | int]:
        return {"SCALAR": CUDA_TYPE[self.ctx.case.dtype], **macros}

    def kernel(self, name: str, **macros: int) -> Kernel:
        return self.ctx.kernel(self.file, self.entry(name), self.macros(macros))

    def floats(self, *shape: int) -> torch.Tensor:
        """Memory for sums, which all sets of buffers share."""
        import torch

        return torch.empty(shape, dtype=torch.float32, device=self.ctx.device)


class _ColumnSums:
    """Memory for `parts` partial sums of each column, and the kernel that adds them. One part needs neither."""

    def __init__(self, case: _GradCase, parts: int) -> None:
        self.partial = case.floats(case.sums, parts, case.columns) if parts > 1 else None
        self._kernel = case.kernel("total") if parts > 1 else None
        team, teams = _total_teams(parts, blocks(case.columns, _TOTAL_COLUMNS) * case.sums, cuda.multiprocessors())
        self._grid = blocks(case.columns, _TOTAL_COLUMNS * teams), case.sums
        self._threads = teams * team
        self._sizes = tuple(map(ctypes.c_uint32, (parts, case.columns, team)))

    def of(self, which: int) -> torch.Tensor | None:
        """The memory for the sums of dgamma (which = 0) or of dbeta (1)."""
        return None if self.partial is None else self.partial[which]

    def finish(self, t: Tensors) -> None:
        """Add the parts to dgamma and dbeta."""
        if self._kernel is not None:
            self._kernel(self._grid, self._threads, self.partial, *_results(t), *self._sizes)


def _total_teams(parts: int, count: int, multiprocessors: int) -> tuple[int, int]:
    """(threads of a team, teams of a block), where there are `count` teams that add `parts` partial sums each.

    A team has so many threads that each loads all of its parts at once, if they can. Small teams share blocks where
    there are more teams than a GPU could run at a time as blocks.
    """
    a_warp = WARP // _TOTAL_COLUMNS * _TOTAL_AHEAD
    team = min(_TOTAL_BLOCK, WARP * blocks(parts, a_warp))
    return team, max(1, _TOTAL_TEAMS // team) if count > _RESIDENT_BLOCKS * multiprocessors else 1


def _statistics(t: Tensors) -> tuple[Any, ...]:
    return (t.mean, t.rstd) if hasattr(t, "mean") else (t.rstd,)


def _results(t: Tensors) -> tuple[Any, ...]:
    return (t.dgamma, t.dbeta) if hasattr(t, "dbeta") else (t.dgamma,)


def _inputs(t: Tensors) -> tuple[Any, ...]:
    return (t.dy, t.x, t.gamma, *_statistics(t))


def _groups(case: _GradCase, column_blocks: int, most_blocks: int) -> int:
    """Groups of rows that sum columns at the same time: enough to keep the GPU busy, if there are enough rows."""
    wanted = most_blocks * cuda.multiprocessors() // max(1, column_blocks)
    return max(1, min(wanted, blocks(case.rows, _GROUP_ROWS), MOST_ROWS))


def separate(ctx: Context) -> Launch:
    """A kernel for each output, at any address."""
    case = _GradCase.of(ctx)
    column_blocks = blocks(case.columns, WARP)
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
    """Why no kernel can run a case; None if they can."""
    return None if case.symbols["N"] < _COLUMNS else f"rows of fewer than {_COLUMNS} columns only"


def too_long_for_registers(case: Case) -> str | None:
    """Why `fused` can't run a case; None if it can."""
    if case.symbols["N"] <= _LONGEST:
        return None
    return (
        f"rows of up to {_LONGEST} columns only: their sums must fit into the registers of {RESIDENT_WITH_SUMS} threads"
    )


def fused(ctx: Context) -> Launch:
    """Blocks that work on many rows, one after the other. Rows have up to 8192 elements, at any address."""
    case = _GradCase.of(ctx)
    threads = WARP if case.columns <= WARP * _KEPT else RESIDENT_WITH_SUMS
    grid = max(1, min(case.rows, cuda.multiprocessors() * RESIDENT_WITH_SUMS // threads))
    kernel, sums = case.kernel("fused", THREADS=threads, KEPT=_KEPT), _ColumnSums(case, grid)

    def launch(t: Tensors) -> None:
        kernel(grid, threads, *_inputs(t), t.dx, *_results(t), sums.partial, *case.sizes)
        sums.finish(t)

    return launch


def tuned(ctx: Context) -> Launch:
    """Few rows beside columns; else the kernel on tiles where it pays, or the kernels that spread rows.

    `separate` runs at unaligned addresses.
    """
    case, parameters = _GradCase.of(ctx), ctx.plan()
    assert parameters is not None
    beside = beside_plan(ctx.case, int(parameters["cluster"])) if parameters["way"] == "beside" else None
    plan, teams = (None, 0) if parameters["way"] in ("spread", "beside") else _tiles(case, parameters)
    if beside:
        chosen = _beside(case, beside)
    elif plan is None or not teams or (parameters["way"] == "auto" and not plan.worth(teams)):
        chosen = _spread(case)
        if not case.whole_packs:
            return chosen
    else:
        chosen = _on_tiles(case, plan, teams)
    fallback = separate(ctx)

    def launch(t: Tensors) -> None:
        if aligned(*_inputs(t), t.dx, *_results(t)):
            chosen(t)
        else:
            fallback(t)

    return launch


def _tiles(case: _GradCase, parameters: Plan) -> tuple[NormGradPlan | None, int]:
    """The plan on tiles, and how many of its teams run at a time; with smaller clusters where no large one runs.

    Raises MachineError if a search tries a plan of which no team runs: the plan in its place isn't what it asked for.
    """
    plan = tiles_plan(case.ctx.case, case.sums, parameters)
    teams = 0 if plan is None else _teams(case, plan)
    if plan and not teams and case.ctx.tried is not None and parameters["way"] == "tiles":
        raise MachineError(f"this device has no room for a cluster of {plan.team.cluster} blocks of this plan")
    if plan is None or teams or plan.team.cluster <= MOST_BLOCKS:
        return plan, teams
    smaller = narrower(case.ctx.case, case.sums)
    return smaller, 0 if smaller is None else _teams(case, smaller)


def _teams(case: _GradCase, plan: NormGradPlan) -> int:
    """The plan's teams that run at a time: a cluster needs neighbouring multiprocessors, which may be taken."""
    team = plan.team
    if team.cluster == 1:
        return plan.teams
    # Not loaded through the context, whose list has the kernels that run.
    kernel = cuda.load(case.ctx.op.find(case.file), case.entry("tuned"), case.macros(plan.macros))
    return min(plan.teams, resident_clusters(kernel, team.threads, plan.shared, team.cluster))


def _on_tiles(case: _GradCase, plan: NormGradPlan, teams: int) -> Launch:
    team = plan.team
    kernel = case.kernel("tuned", **plan.macros)
    cluster = team.cluster if team.cluster > 1 else None
    sums = _ColumnSums(case, teams)
    tiling = [ctypes.c_uint32(n) for n in (plan.tile_rows, plan.piece, plan.tile_bytes, plan.row_bytes)]

    def launch(t: Tensors) -> None:
        arguments = (*_inputs(t), t.dx, *_results(t), sums.partial, *case.sizes, *tiling)
        kernel(teams * team.cluster, team.threads, *arguments, shared=plan.shared, cluster=cluster)
        sums.finish(t)

    return launch


def _beside(case: _GradCase, plan: BesidePlan) -> Launch:
    """Blocks for rows, and beside them blocks for columns."""
    kernel, sizes = case.kernel("beside", **plan.macros), (ctypes.c_uint32(case.rows), ctypes.c_uint32(case.columns))
    cluster = plan.cluster if plan.cluster > 1 else None
    return lambda t: kernel(plan.grid, plan.threads, *_inputs(t), t.dx, *_results(t), *sizes, cluster=cluster)


def _spread(case: _GradCase) -> Launch:
    """Sums of rows first, then the rest; at any address where rows aren't whole packs, else aligned to packs."""
    size = PACK_BYTES // case.itemsize if case.whole_packs else 1
    chunks = case.columns // size
    parts = max(1, min(_MOST_PARTS, chunks // _PART_CHUNKS))
    column_blocks = blocks(chunks, WARP)
    groups = _groups(case, column_blocks, most_blocks=4)
    macros = {"SINGLES": int(size == 1)}
    rows, spread = case.kernel("rows", **macros), case.kernel("spread", **macros)
    sums, row_sums = _ColumnSums(case, groups), case.floats(case.rows, parts, case.sums)
    a_row = ctypes.c_uint32(parts)
    row_blocks = blocks(case.rows * parts, _SUM_BLOCK // WARP)

    def launch(t: Tensors) -> None:
        rows(row_blocks, _SUM_BLOCK, *_inputs(t), row_sums, *case.sizes, a_row)
        arguments = (*_inputs(t), row_sums, t.dx, *_results(t), sums.partial, *case.sizes, a_row)
        spread((column_blocks, groups), _SPREAD_BLOCK, *arguments)
        sums.finish(t)

    return launch
