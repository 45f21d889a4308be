"""The backward of a residual connection and RMSNorm: beyond the texts. Twin of add_rms_norm_grad.cu.

x is the sum that add_rms_norm gave. dx is the gradient of both terms of the sum.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, BLOCK, PACK_BYTES, aligned, blocks
from harness.collection.ops.rows import _norm_grad as grad
from harness.collection.ops.rows import _norm_grad_check as exact
from harness.collection.ops.rows._add_norm_grad import FEW_MACROS, TUNING, AddNormGradPlan
from harness.collection.ops.rows._norm import GAMMA, RSTD, SYMBOLS, X, rms_normalised
from harness.collection.ops.rows.rms_norm_grad import _backward, _steps
from harness.model import Traffic
from harness.ops import Compile, Context, Expected, Launch, Op, Plan, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_GRID = 2**31 - 1  # blocks

# Threads of blocks, as in add_norm_grad_few.cuh.
_FEW_SUM_BLOCK = 128
_FEW_BLOCK = 256


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers, and the rstd of x."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device, "dtype": ctx.dtype}
    return exact.make(ctx, rms_normalised) | {"dsum": torch.randn((ctx.s.M, ctx.s.N), **options)}


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The outputs in float64."""
    of_norm = exact.reference(ctx, t)
    return of_norm | {"dx": of_norm["dx"] + t.dsum.double()}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """The gradient through the norm is held to what rms_norm_grad is held to; dsum is added to it."""
    import torch

    unit = torch.finfo(ctx.dtype)
    for found in exact.check(ctx, t):
        if found.name != "dx":
            yield found
            continue
        first = found.start // max(1, ctx.s.N)
        dsum = t.before.dsum[first : first + len(found.want)].double()
        want = found.want + dsum
        # The addition rounds once in float32, and the result once more to the case's type.
        allowed = found.allowed + 2**-22 * dsum.abs() + unit.eps / 2 * want.abs()
        yield Expected("dx", found.got, want, allowed, found.start, loose=True)


OP = Op(
    "add_rms_norm_grad",
    "dx = dsum + rstd * (g - xhat * mean(g * xhat)) with g = dy * gamma; dgamma = sum(dy * xhat)",
    symbols=SYMBOLS,
    inputs=(grad.DY, Tensor("dsum", ("M", "N")), X, GAMMA, RSTD),
    outputs=(grad.DX, grad.DGAMMA),
    reference=reference,
    make=make,
    check=check,
    extremes=exact.extremes("rstd"),
    items="M",
    item="rows",
)


def _traffic(matrices: int, written: int = 1) -> Any:
    """The traffic of a variant that reads and writes so many matrices; vectors are little beside them."""

    def moved(symbols: Symbols, size: int) -> Traffic:
        matrix = symbols["M"] * symbols["N"] * size
        return Traffic(matrices * matrix, written * matrix)

    return moved


@OP.variant(
    "eager",
    "what autograd calls: the norm's backward, then an addition",
    role="baseline",
    devices=ANY,
    returns=True,
    traffic=_traffic(6, 2),
)
def eager(_: Context) -> Launch:
    """Two kernels of the norm, which both read dy and x, and one that adds dsum."""

    def launch(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        dx, dgamma = _backward(t.dy, t.x, t.gamma, t.rstd)
        return dx + t.dsum, dgamma

    return launch


def _all_steps(
    dy: torch.Tensor, dsum: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dx, dgamma = _steps(dy, x, gamma, rstd)
    return dx + dsum, dgamma


@compiled_variants(OP, "torch.compile of its steps")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels read dy and x once or more often, which depends on the shape."""
    function = compiled(_all_steps)
    return lambda t: function(t.dy, t.dsum, t.x, t.gamma, t.rstd)


@OP.variant("separate", "a kernel each for dx and dgamma; any address", traffic=_traffic(5), unsupported=grad.too_long)
def separate(ctx: Context) -> Launch:
    """The starting point."""
    case = grad._GradCase.of(ctx)
    column_blocks = blocks(case.columns, WARP)
    groups = grad._groups(case, column_blocks, most_blocks=8)
    sums = grad._ColumnSums(case, groups)
    dx, dgamma = case.kernel("dx"), case.kernel("dgamma")

    def launch(t: Tensors) -> None:
        dx(min(case.rows, _GRID), BLOCK, t.dy, t.dsum, t.x, t.gamma, t.rstd, t.dx, *case.sizes)
        dgamma((column_blocks, groups), BLOCK, t.dy, t.x, t.rstd, t.dgamma, sums.of(0), *case.sizes)
        sums.finish(t)

    return launch


@OP.variant(
    "tuned",
    "one read of all; rows in shared memory, ahead of the work; few rows by columns, from the L2",
    unsupported=grad.too_long,
    tuning=TUNING,
)
def tuned(ctx: Context) -> Launch:
    """`separate` runs where rows aren't whole packs or are too long, or packs aren't aligned."""
    fallback: Launch = separate(ctx)
    plan = ctx.plan()
    if plan is None:
        return fallback
    chosen = _few(ctx) if plan["way"] == "few" else _in_stages(ctx, plan)

    def launch(t: Tensors) -> None:
        (chosen if aligned(t.dy, t.dsum, t.x, t.gamma, t.dx, t.dgamma) else fallback)(t)

    return launch


def _in_stages(ctx: Context, found: Plan) -> Launch:
    """Blocks that take rows in turn and keep the sums of all columns, then the total of these."""
    case, plan = grad._GradCase.of(ctx), AddNormGradPlan.planned(ctx.case, found)
    assert plan
    grid = max(1, min(case.rows, cuda.multiprocessors() * plan.resident))
    kernel, sums = case.kernel("tuned", **plan.macros), grad._ColumnSums(case, grid)

    def launch(t: Tensors) -> None:
        arguments = t.dy, t.dsum, t.x, t.gamma, t.rstd, t.dx, t.dgamma
        kernel(grid, plan.threads, *arguments, sums.of(0), *case.sizes, shared=plan.shared)
        sums.finish(t)

    return launch


def _few(ctx: Context) -> Launch:
    """The sums of all rows, then blocks of columns that have all rows."""
    case, parts = grad._GradCase.of(ctx), FEW_MACROS["PARTS"]
    rows, spread = (case.kernel(name, **FEW_MACROS) for name in ("rows", "spread"))
    sums, sizes = case.floats(case.rows, parts), (ctypes.c_uint32(case.rows), ctypes.c_uint32(case.columns))
    row_blocks = blocks(case.rows * parts, _FEW_SUM_BLOCK // WARP)
    column_blocks = blocks(case.columns * case.itemsize // PACK_BYTES, FEW_MACROS["WIDE"])

    def launch(t: Tensors) -> None:
        inputs = t.dy, t.dsum, t.x, t.gamma, t.rstd, sums
        rows(row_blocks, _FEW_SUM_BLOCK, *inputs, *sizes)
        spread(column_blocks, _FEW_BLOCK, *inputs, t.dx, t.dgamma, *sizes)

    return launch
