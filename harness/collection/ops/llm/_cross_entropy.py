"""What the cross-entropy ops share: declarations, inputs, references and launches. Twin of cross_entropy.cuh.

logits: (M, V). targets: (M,), int64: the column that is right in each row, or IGNORED where a row doesn't count. valid:
(1,), float32: how many rows count.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.chip import WARP, Chip
from harness.collection.ops.elementwise import CUDA_TYPE, PACK_BYTES, aligned, blocks, power_of_2_from
from harness.collection.ops.rows._row_tuning import RowParameters, plan_of
from harness.collection.ops.rows._rows import RowPlan
from harness.ops import Context, Extremes, Launch, Tensor, Tensors

if TYPE_CHECKING:
    import torch

IGNORED = -100
"""Torch's default for the target of rows that don't count; the macro IGNORED gives kernels another one."""
SYMBOLS = {"M": "rows (tokens)", "V": "columns (the vocabulary)"}
LOGITS = Tensor("logits", ("M", "V"))
TARGETS = Tensor("targets", ("M",), "int64")
VALID = Tensor("valid", (1,), "float32")

_ONE_IGNORED = 8  # one row in so many doesn't count
_ANY_BLOCK = 512  # threads, as in cross_entropy.cuh
_GRID = 2**31 - 1  # blocks
_CHECKED = 2**22  # elements checked at a time
_MANY = 8  # rows for each multiprocessor from which on clusters may have other numbers of blocks than powers of two


def extremes(*given: str) -> Extremes:
    """The extreme values that inputs may have. given: the inputs besides logits."""
    return Extremes(
        exempt=dict.fromkeys(given, "what a forward gives follows from the logits"),
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**100),
        why="a loss is a difference of two logits, and losses are added, in float32",
    )


def make(ctx: Context) -> dict[str, Any]:
    """Logits, normal numbers; a target in each row, and a few rows that don't count; how many count."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device}
    logits = torch.randn((ctx.s.M, ctx.s.V), dtype=ctx.dtype, **options)
    targets = torch.randint(0, max(1, ctx.s.V), (ctx.s.M,), **options)
    targets[_ONE_IGNORED - 1 :: _ONE_IGNORED] = IGNORED
    return {"logits": logits, "targets": targets, "valid": (targets != IGNORED).sum().float().view(1)}


def parts(ctx: Context) -> Iterator[slice]:
    """Rows that are checked at a time."""
    step = max(1, _CHECKED // max(1, ctx.s.V))
    return (slice(first, first + step) for first in range(0, ctx.s.M, step))


def row_losses(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and lse of each row, in float64; a row that doesn't count has no loss."""
    import torch

    wide = logits.double()
    lse = torch.logsumexp(wide, 1)
    losses = torch.nn.functional.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none")
    return losses, lse


def gradient(logits: torch.Tensor, targets: torch.Tensor, lse: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """The gradient of the logits, in the type of lse. factor: (1,), the gradient of each row's loss."""
    import torch

    share = (logits.to(lse.dtype) - lse[:, None]).exp()
    counted = targets != IGNORED
    places = targets.clamp(min=0)[:, None]
    share.scatter_add_(1, places, -torch.ones_like(places, dtype=share.dtype))
    return torch.where(counted[:, None], share * factor, 0.0)


Arguments = Callable[[Tensors], tuple[Any, ...]]
"""Gives a kernel's tensors in the order of its parameters."""


def kernel(ctx: Context, entry: str, **macros: str | int) -> cuda.Kernel:
    """A kernel of the op's file."""
    op = ctx.case.op
    return ctx.kernel(f"{op}.cu", f"{op}_{entry}", {"SCALAR": CUDA_TYPE[ctx.case.dtype], **macros})


def any_length(ctx: Context, entry: str, tensors: Arguments) -> Launch:
    """A block a row, of any length and at any address."""
    by_blocks, grid = kernel(ctx, entry), min(ctx.s.M, _GRID)
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_int64(ctx.s.V)
    return lambda t: by_blocks(grid, _ANY_BLOCK, *tensors(t), *sizes)


def _ruled(rows: int, columns: int, itemsize: int, chip: Chip) -> RowPlan | None:
    plan = RowPlan.of(rows, columns, itemsize, chip) if columns else None
    if plan is None or plan.tile_rows:
        return None
    cluster = power_of_2_from(plan.cluster)
    if cluster == plan.cluster or rows >= _MANY * chip.multiprocessors:
        return plan
    # Few rows are few waves of clusters. A multiprocessor has room for more of smaller blocks, so that waves overlap.
    share = blocks(columns * itemsize // PACK_BYTES, cluster)
    threads = blocks(blocks(share, plan.count), WARP) * WARP
    return replace(plan, count=blocks(share, threads), threads=threads, cluster=cluster)


def _limit(plan: RowPlan) -> str | None:
    return "very short rows have a kernel of their own" if plan.tile_rows else None


TUNING = RowParameters(columns="V", ruled=_ruled, limit=_limit).tuning
"""What `tuned` of the ops declares that keep rows in registers."""


def planned(ctx: Context, tensors: Arguments, fallback: Launch) -> Launch:
    """The kernel <op>_tuned, by teams that keep rows in registers.

    `fallback` runs where a row is too long for registers, or very short, or logits don't begin on 16 bytes.
    """
    plan = plan_of(ctx, "V")
    if plan is None:
        return fallback
    in_registers, cluster = kernel(ctx, "tuned", **plan.macros), plan.cluster if plan.cluster > 1 else None
    sizes, grid = (ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.V)), plan.grid(ctx.s.M)

    def launch(t: Tensors) -> None:
        if aligned(t.logits):
            in_registers(grid, plan.threads, *tensors(t), *sizes, cluster=cluster)
        else:
            fallback(t)

    return launch
