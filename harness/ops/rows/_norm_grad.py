"""What the backwards of LayerNorm and RMSNorm share: references and launches. Twin of norm_grad.cuh.

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
from harness.ops._device import H200, WARP, Device
from harness.ops._elementwise import BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.ops.rows._norm_grad_plan import RESIDENT_WITH_SUMS, Plan

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel

DY = Tensor("dy", ("M", "N"))
DX = Tensor("dx", ("M", "N"))
DGAMMA = Tensor("dgamma", ("N",))
DBETA = Tensor("dbeta", ("N",))

_GRID = 2**31 - 1  # blocks along x
_GRID_Y = 2**16 - 1
_COLUMNS = 2**31  # that a row has fewer of, for kernels to count them in 32 bits

# As in norm_grad.cuh and norm_grad_spread.cuh.
_TOTAL_BLOCK = 1024
_SUM_BLOCK = 128
_SPREAD_BLOCK = 256

_GROUP_ROWS = 32  # that a group has at least, where groups of rows write sums of columns
_MOST_PARTS = 32  # of a row, each summed by a warp of its own
_PART_CHUNKS = 4 * WARP  # that a part has at least

# Of `fused`:
_KEPT = 16  # elements of a row that a thread has
_LONGEST = RESIDENT_WITH_SUMS * _KEPT

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


def tuned_traffic(sums: int) -> Callable[[Symbols, int], Work]:
    """Of `tuned`: dy and x once on tiles, twice where rows are spread.

    As the plan for the current device has it, or for an H200 where there is no device. All of the plan's clusters are
    taken to find room, and tensors to be aligned.
    """

    def work(symbols: Symbols, itemsize: int) -> Work:
        import torch

        device = Device.current() if torch.cuda.is_available() else H200
        plan = Plan.of(symbols["M"], symbols["N"], itemsize, sums, device)
        reads = 1 if plan is not None and plan.worth(plan.teams) else 2
        return traffic(dy=reads, x=reads)(symbols, itemsize)

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
        """Room for sums, which all sets of buffers share."""
        import torch

        return torch.empty(shape, dtype=torch.float32, device=self.ctx.device)


class _ColumnSums:
    """Room for `parts` partial sums of each column, and the kernel that adds them; neither where there is one part."""

    def __init__(self, case: _Case, parts: int) -> None:
        self.partial = case.floats(case.sums, parts, case.columns) if parts > 1 else None
        self._kernel = case.kernel("total") if parts > 1 else None
        self._grid = blocks(case.columns, WARP), case.sums
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
    """A kernel for each output. At any address."""
    case = _Case.of(ctx)
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
    """Why no kernel here can run a case."""
    return None if case.symbols["N"] < _COLUMNS else f"rows of fewer than {_COLUMNS} columns only"


def too_long_for_registers(case: Case) -> str | None:
    """Why `fused` can't run a case."""
    if case.symbols["N"] <= _LONGEST:
        return None
    return (
        f"rows of up to {_LONGEST} columns only: their sums must fit into the registers of {RESIDENT_WITH_SUMS} threads"
    )


def fused(ctx: Context) -> Launch:
    """Blocks that stay for many rows. Rows of up to 8192 elements, at any address."""
    case = _Case.of(ctx)
    threads = WARP if case.columns <= WARP * _KEPT else RESIDENT_WITH_SUMS
    grid = max(1, min(case.rows, cuda.multiprocessors() * RESIDENT_WITH_SUMS // threads))
    kernel, sums = case.kernel("fused", THREADS=threads, KEPT=_KEPT), _ColumnSums(case, grid)

    def launch(t: Tensors) -> None:
        kernel(grid, threads, *_inputs(t), t.dx, *_results(t), sums.partial, *case.sizes)
        sums.finish(t)

    return launch


def tuned(ctx: Context) -> Launch:
    """The kernel on tiles where it's worth it, else the one that spreads rows; `separate` at unaligned addresses."""
    case = _Case.of(ctx)
    plan = Plan.of(case.rows, case.columns, case.itemsize, case.sums, Device.current())
    teams = 0 if plan is None else _teams(case, plan)
    if plan is None or not plan.worth(teams):
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


def _teams(case: _Case, plan: Plan) -> int:
    """Of the plan's, those that run at a time: clusters need neighbouring multiprocessors, which may be taken."""
    team = plan.team
    if team.cluster == 1:
        return plan.teams
    # Not through the context, whose list of kernels has only those that run.
    kernel = cuda.load(case.ctx.op.find(case.file), case.entry("tuned"), case.macros(plan.macros))
    return min(plan.teams, kernel.resident_clusters(team.threads, plan.shared, team.cluster))


def _on_tiles(case: _Case, plan: Plan, teams: int) -> Launch:
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


def _spread(case: _Case) -> Launch:
    """Sums of rows first, then the rest; at any address where rows aren't whole packs."""
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
