"""An op of your own: `harness run examples/own_op.yaml --ops examples/own_op.py`.

The op is SwiGLU, y = silu(a) * b. Its data sheet says what goes in, what comes out, and what is right. Each variant is
one way to compute y: the decorated function prepares (this isn't timed), and gives the call that is timed.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from harness.ops import Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch  # a listing of ops needs no torch: only what is called imports it

ANYWHERE = ("cuda", "cpu")


def reference(_: Context, t: Tensors) -> dict[str, object]:
    """What is right, in float64. The result of each variant is compared with it before anything is timed."""
    import torch.nn.functional as F  # noqa: N812 - torch's own short name

    return {"y": F.silu(t.a.double()) * t.b.double()}


OP = Op(
    "silu_gate",
    "y = silu(a) * b",
    symbols={"M": "rows", "N": "columns"},
    inputs=(Tensor("a", ("M", "N")), Tensor("b", ("M", "N"))),
    outputs=(Tensor("y", ("M", "N")),),
    dtypes=("float32",),
    reference=reference,
)


def _gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch.nn.functional as F  # noqa: N812

    return F.silu(a) * b


@OP.variant("eager", "two kernels of torch", role="baseline", devices=ANYWHERE, returns=True)
def eager(_: Context) -> Launch:
    """What a user writes today. `returns=True`: the call makes its outputs itself, as torch does."""
    return lambda t: (_gated(t.a, t.b),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Adds `compile` and `compile_autotune`, the two modes of torch.compile that a fair comparison needs."""
    function = compiled(_gated)
    return lambda t: (function(t.a, t.b),)


@OP.variant("kernel", "one CUDA kernel, an element a thread")
def kernel(ctx: Context) -> Launch:
    """Ours: own_op.cu lies beside this file, and is compiled here. The kernel writes into the declared output."""
    silu_gate, count = ctx.kernel("own_op.cu", "silu_gate"), ctx.s.M * ctx.s.N
    return lambda t: silu_gate(-(-count // 256), 256, t.a, t.b, t.y, ctypes.c_int64(count))
