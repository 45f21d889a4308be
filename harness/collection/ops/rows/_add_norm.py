"""What the ops share that add a residual before a norm: declarations, checks and launches. Twin of add_norm.cuh."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

from harness.collection.ops.chip import Chip
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows._row_tuning import RowParameters, plan_of
from harness.collection.ops.rows._rows import Arguments, RowKernel, RowPlan
from harness.model import Case
from harness.ops import ITEMSIZE, Context, Expected, Launch, Tensor, Tensors, Tuning

if TYPE_CHECKING:
    import torch

RESIDUAL = Tensor("residual", ("M", "N"))
SUM = Tensor("sum", ("M", "N"))

_MOST_BLOCKS = 2**31 - 1  # of a grid
_MOST_PACKS = 4096  # of a block: with more of them, threads that make numbers of 8 bits have too few registers


def expected_sum(t: Tensors) -> Expected:
    """What the sum must be: exact, but for two roundings where halves are added in float32."""
    import torch

    want = t.before.x.double() + t.before.residual.double()
    unit = torch.finfo(t.sum.dtype)
    return Expected("sum", t.sum, want, unit.eps * want.abs() + unit.tiny * unit.eps)


def expected(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What sum, y and rstd must be. y and rstd are of the sum as it was stored, or as it was before it was rounded.

    torch.compile takes the sum before. So y and rstd may also be off by the rounding of a number.
    """
    import torch

    yield expected_sum(t)
    unit = torch.finfo(t.sum.dtype).eps / 2
    of_sum = Tensors(before=Tensors(x=t.sum, gamma=t.before.gamma), y=t.y, rstd=t.rstd)
    outputs = tuple(output for output in ctx.op.outputs if output.name != "sum")
    of_norm = SimpleNamespace(op=SimpleNamespace(outputs=outputs))
    for one in norm.forward_expected(of_norm, of_sum, norm.rms_normalised):  # type: ignore[arg-type]
        assert one.allowed is not None
        yield replace(one, allowed=one.allowed + unit * one.want.abs())


def added(x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The sum, its RMSNorm, and rstd, (M,), by torch's functions."""
    import torch

    total = x + residual
    y, rstd = torch.ops.aten._fused_rms_norm(total, total.shape[1:], gamma, norm.EPS)
    return total, y, rstd.view(-1)


def two_pass(ctx: Context, tensors: Arguments, **macros: int) -> Launch:
    """The kernel <op>_two_pass: a block a row, of any length and at any address. macros: of the op."""
    threads = 256 if ctx.s.N <= 8192 else 1024
    options: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "THREADS": threads, **macros}
    kernel = ctx.kernel(f"{ctx.case.op}.cu", f"{ctx.case.op}_two_pass", options)
    sizes, grid = (ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.N)), min(ctx.s.M, _MOST_BLOCKS)
    return lambda t: kernel(grid, threads, *tensors(t), *sizes)


def tuning(together: int = 2, macros: Callable[[Case], Mapping[str, int]] | None = None) -> Tuning:
    """What `tuned` of an op declares. together: rows that a team may work on at once. macros: of the op."""

    def limit(plan: RowPlan) -> str | None:
        if plan.ragged or plan.tile_rows:
            return "rows aren't whole packs"
        if plan.count * plan.threads > _MOST_PACKS:
            return f"a block has more than {_MOST_PACKS} packs"
        # Lanes of a warp take one row at a time: a second row would need the registers of two more.
        return "a team has too many rows at once" if plan.together > (1 if plan.lanes else together) else None

    def ruled(rows: int, columns: int, itemsize: int, chip: Chip) -> RowPlan | None:
        plan = RowPlan.with_vectors(rows, columns, itemsize, chip, vectors=1)
        found = plan and replace(plan, together=1 if plan.lanes else min(together, plan.together))
        return None if found is None or limit(found) else found

    return RowParameters(vectors=1, ruled=ruled, limit=limit, macros=macros).tuning


def planned(ctx: Context, tensors: Arguments, **macros: int) -> Launch:
    """The kernel <op>_tuned as planned; `two_pass` where there is no plan, or a tensor doesn't begin on 16 bytes.

    macros: of the op.
    """
    fallback, plan = two_pass(ctx, tensors, **macros), plan_of(ctx)
    if plan is None:
        return fallback
    kernel = RowKernel(ctx, plan, 0, WHOLE=int(plan.holds(ctx.s.N, ITEMSIZE[ctx.case.dtype])), **macros)

    def launch(t: Tensors) -> None:
        if not kernel(*tensors(t)):
            fallback(t)

    return launch
