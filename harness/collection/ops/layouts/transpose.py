"""The transpose of a matrix, y = x.T made contiguous: row O13. Twin of transpose.cu."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import BLOCK, BOTH, blocks
from harness.collection.ops.layouts import _transpose
from harness.collection.ops.layouts._transpose_ops import add_matrix_variants
from harness.collection.ops.layouts._transpose_plan import Matrices
from harness.model import Case
from harness.ops import FLOATS, ITEMSIZE, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """Nothing is computed, so the case's precision is exact."""
    return {"y": t.x.t()}


OP = Op(
    "transpose",
    "y[c, r] = x[r, c]",
    symbols={"M": "rows of x", "N": "columns of x"},
    inputs=(Tensor("x", ("M", "N")),),
    outputs=(Tensor("y", ("N", "M")),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


def _user(x: torch.Tensor) -> torch.Tensor:
    """What a user writes as `x.t().contiguous()`, which makes a new tensor only if M and N are both above 1."""
    import torch

    return x.t().clone(memory_format=torch.contiguous_format)


@OP.variant("eager", "torch's copy of x.t()", role="baseline", devices=BOTH, returns=True)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (_user(t.x),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes a kernel for exactly this shape."""
    function = compiled(_user)
    return lambda t: (function(t.x),)


@OP.variant("naive", "one element a thread, a division for its coordinates", role="published", rows=("O13",))
def naive(ctx: Context) -> Launch:
    """The text before, in the order of y."""
    n = ctx.s.M * ctx.s.N
    macro, word = _transpose.index(n)
    kernel = ctx.kernel("transpose.cu", "transpose_naive", _transpose.moved_as(ctx.case) | macro)
    grid, sizes = blocks(n), (word(n), word(ctx.s.M), word(ctx.s.N))
    return lambda t: kernel(grid, BLOCK, t.x, t.y, *sizes)


def _matrices(case: Case) -> Matrices:
    return Matrices(1, case.symbols["M"], case.symbols["N"], ITEMSIZE[case.dtype])


add_matrix_variants(OP, _matrices)
