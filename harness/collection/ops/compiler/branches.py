"""PReLU with a slope for each element, a branch around its read or not: row O21. Twin of branches.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.compiler._launches import by_elements, by_packs
from harness.collection.ops.elementwise import BOTH, widened
from harness.model import Traffic
from harness.ops import Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


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
    return by_elements(ctx, "branches_branch")


@OP.variant(
    "select", "one element a thread; both are read, then one value is selected", role="published", rows=("O21",)
)
def select(ctx: Context) -> Launch:
    """The text after: two reads are in flight."""
    return by_elements(ctx, "branches_select")


@OP.variant("tuned", "one pack of x and one of w a thread, then selections")
def tuned(ctx: Context) -> Launch:
    """It goes element by element where a tensor isn't aligned to 16 bytes."""
    return by_packs(ctx, "branches_tuned")
