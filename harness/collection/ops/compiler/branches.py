"""PReLU with a slope for each element, a branch around its read or not: row O21. Twin of branches.cu."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import BLOCK, BOTH, CUDA_TYPE, PACK_BYTES, aligned, blocks, widened
from harness.model import Traffic
from harness.ops import ITEMSIZE, Context, Launch, Op, Symbols, Tensor, Tensors
from harness.ops.baselines import Compile, compiled_variants

if TYPE_CHECKING:
    import torch

    from harness.cuda import Kernel


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    return {"y": select_by_sign(*widened(t.x, t.w))}


OP = Op(
    "branches",
    "y = x if x > 0 else w * x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)), Tensor("w", ("N",))),
    outputs=(Tensor("y", ("N",)),),
    reference=reference,
)


def unfused(symbols: Symbols, itemsize: int) -> Traffic:
    """Three kernels: a comparison, which writes bytes, a product and a selection."""
    n = symbols["N"]
    return Traffic(read=(1 + 2 + 2) * n * itemsize + n, written=2 * n * itemsize + n)


def select_by_sign(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The op as a user writes it."""
    import torch

    return torch.where(x > 0, x, w * x)


@OP.variant(
    "eager",
    "torch.where(x > 0, x, w * x), three kernels",
    role="baseline",
    devices=BOTH,
    returns=True,
    traffic=unfused,
)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (select_by_sign(t.x, t.w),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(select_by_sign)
    return lambda t: (function(t.x, t.w),)


@OP.variant("branch", "one element a thread; w is read only where x isn't positive", role="published", rows=("O21",))
def branch(ctx: Context) -> Launch:
    """The text before: the read of w waits for x."""
    return _by_elements(ctx, "branches_branch")


@OP.variant(
    "select", "one element a thread; both are read, then one value is selected", role="published", rows=("O21",)
)
def select(ctx: Context) -> Launch:
    """The text after: two reads are in flight."""
    return _by_elements(ctx, "branches_select")


@OP.variant("tuned", "one pack of x and one of w a thread, then selections")
def tuned(ctx: Context) -> Launch:
    """It goes element by element where a tensor isn't aligned to 16 bytes."""
    kernel = _kernel(ctx, "branches_tuned")
    pack = PACK_BYTES // ITEMSIZE[ctx.case.dtype]

    def launch(t: Tensors) -> None:
        n = t.x.numel()
        in_packs = ctypes.c_int32(aligned(t.x, t.w, t.y))
        kernel(blocks(n, BLOCK * pack), BLOCK, t.x, t.w, t.y, ctypes.c_int64(n), in_packs)

    return launch


def _by_elements(ctx: Context, entry: str) -> Launch:
    kernel = _kernel(ctx, entry)

    def launch(t: Tensors) -> None:
        n = t.x.numel()
        kernel(blocks(n), BLOCK, t.x, t.w, t.y, ctypes.c_int64(n))

    return launch


def _kernel(ctx: Context, entry: str) -> Kernel:
    return ctx.kernel("branches.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
