"""A linear layer, y = x w^T + bias: row S10. Twin of linear_bias.cu.

x is (M, K), the weight (N, K) as nn.Linear has it. Products of float32 are not rounded to TF32, which is torch's
default too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.gemm import _linear
from harness.collection.ops.gemm._linear import fused, product, separate_traffic, without_epilogue
from harness.collection.ops.gemm._products import EXTREMES, expected, needs
from harness.cuda.cublaslt import MANY, Gemm
from harness.model import Case
from harness.ops import Compile, Context, Expected, Launch, Op, Tensor, Tensors, compiled_variants

_X, _BIAS = Tensor("x", ("M", "K")), Tensor("bias", ("N",))


def check(_: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be, from a product in higher precision."""
    return expected("y", t.y, t.before.x, t.before.weight, t.before.bias)


OP = Op(
    "linear_bias",
    "y = x w^T + bias, a linear layer",
    symbols={"M": "rows of x", "K": "columns of x", "N": "columns of y, one bias each"},
    inputs=(_X, Tensor("weight", ("N", "K")), _BIAS),
    outputs=(Tensor("y", ("M", "N")),),
    check=check,
    extremes=EXTREMES,
    flops={"case": "2 * M * N * K"},
)


@OP.variant("eager", "torch's F.linear", role="baseline", rows=("S10",), devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """What nn.Linear calls. For halves torch asks cuBLASLt to add the bias itself."""
    import torch

    return lambda t: (torch.nn.functional.linear(t.x, t.weight, t.bias),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """The second mode also tries products that Inductor writes in Triton."""
    import torch

    function = compiled(torch.nn.functional.linear)
    return lambda t: (function(t.x, t.weight, t.bias),)


def _laid_out(case: Case) -> Gemm:
    return product(case, as_rows=False)


@OP.variant(
    "separate",
    "cuBLASLt's product, then a kernel of ours that adds the bias",
    role="published",
    rows=("S10",),
    traffic=separate_traffic,
    unsupported=needs(without_epilogue),
)
def separate(ctx: Context) -> Launch:
    """The text before. The kernel works in place, on packs of 16 bytes."""
    return _linear.separate(ctx, "add_bias", {})


@OP.variant(
    "epilogue",
    "cuBLASLt's product, which adds the bias before it writes y",
    role="published",
    rows=("S10",),
    unsupported=needs(product),
)
def epilogue(ctx: Context) -> Launch:
    """The text after: the first algorithm that cuBLASLt proposes, as a library takes it."""
    return fused(ctx, product(ctx.case))


def _transpose(_: Context, t: Tensors) -> dict[str, Any]:
    return {"weight": t.weight.t().contiguous()}


_LAID_OUT: dict[str, Any] = {
    "rows": ("S10",),
    "inputs": (_X, Tensor("weight", ("K", "N")), _BIAS),
    "encode": _transpose,
    "unsupported": needs(_laid_out),
}


@OP.variant("laid_out", "the same with the weight laid out ahead as (K, N)", role="published", **_LAID_OUT)
def laid_out(ctx: Context) -> Launch:
    """The text's other step. cuBLASLt proposes another algorithm for this layout, so not the layout alone differs."""
    return fused(ctx, _laid_out(ctx.case))


@OP.variant(
    "tuned",
    f"as epilogue, by the fastest of the {MANY} algorithms that cuBLASLt proposes",
    rows=("S10",),
    unsupported=needs(product),
)
def tuned(ctx: Context) -> Launch:
    """The algorithms are timed at the first call, before the case is timed."""
    return fused(ctx, product(ctx.case), MANY)


@OP.variant(
    "laid_out_tuned", f"as laid_out, by the fastest of the {MANY} algorithms that cuBLASLt proposes", **_LAID_OUT
)
def laid_out_tuned(ctx: Context) -> Launch:
    """What the layout changes if the best algorithm is taken for each of the two."""
    return fused(ctx, _laid_out(ctx.case), MANY)
