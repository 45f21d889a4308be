"""A linear layer, y = x w^T + bias: row S10. Twin of linear_bias.cu.

x is (M, K), the weight (N, K) as nn.Linear has it. Products of float32 are not rounded to TF32, which is torch's
default too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from harness import cuda
from harness.collection.ops.elementwise import BLOCK, BOTH, CUDA_TYPE, INDEX_TYPE, LIMIT_32, PACK_BYTES, aligned, blocks
from harness.collection.ops.gemm._products import expected, needs, prepared
from harness.cuda.cublaslt import MANY, Gemm
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

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
    flops={"case": "2 * M * N * K"},
)


@OP.variant("eager", "torch's F.linear", role="baseline", rows=("S10",), devices=BOTH, returns=True)
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


def _product(case: Case, *, bias: bool = True, as_rows: bool = True) -> Gemm:
    s = case.symbols
    return Gemm(s["M"], s["N"], s["K"], case.dtype, case.dtype, as_rows=as_rows, bias=bias)


def _without_bias(case: Case) -> Gemm:
    return _product(case, bias=False)


def _laid_out(case: Case) -> Gemm:
    return _product(case, as_rows=False)


def _separate_traffic(s: Symbols, size: int) -> Traffic:
    """The sum with the bias reads y and the bias, and writes y again."""
    y = s["M"] * s["N"] * size
    once = (s["M"] * s["K"] + s["N"] * s["K"] + s["N"]) * size
    return Traffic(read=once + y, written=2 * y)


@OP.variant(
    "separate",
    "cuBLASLt's product, then a kernel of ours that adds the bias",
    role="published",
    rows=("S10",),
    traffic=_separate_traffic,
    unsupported=needs(_without_bias),
)
def separate(ctx: Context) -> Launch:
    """The text before. The kernel works in place, on packs of 16 bytes."""
    product = prepared(ctx, _without_bias(ctx.case))
    add = _adder(ctx)

    def launch(t: Tensors) -> None:
        product(t.x, t.weight, t.y)
        add(t)

    return launch


def _adder(ctx: Context) -> Launch:
    """Add t.bias to each row of t.y."""
    pack, n = PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.s.M * ctx.s.N
    bits = 32 if n < LIMIT_32 else 64
    word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    macros = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[bits]}
    any_rows = ctx.kernel("linear_bias.cu", "add_bias", macros)
    whole_rows = ctx.kernel("linear_bias.cu", "add_bias_whole", macros) if ctx.s.N % pack == 0 else None
    grid, columns = blocks(-(-n // pack)), (word(ctx.s.N), *cuda.fast_divisor(max(1, ctx.s.N), bits))

    def launch(t: Tensors) -> None:
        if whole_rows and aligned(t.y, t.bias):
            whole_rows(grid, BLOCK, t.y, t.bias, word(n), *columns)
        else:
            any_rows(grid, BLOCK, t.y, t.bias, word(n), ctypes.c_int32(aligned(t.y)), *columns)

    return launch


def _fused(ctx: Context, product: Gemm, algorithms: int = 1) -> Launch:
    matmul = prepared(ctx, product, algorithms)
    return lambda t: matmul(t.x, t.weight, t.y, bias=t.bias)


@OP.variant(
    "epilogue",
    "cuBLASLt's product, which adds the bias before it writes y",
    role="published",
    rows=("S10",),
    unsupported=needs(_product),
)
def epilogue(ctx: Context) -> Launch:
    """The text after: the first algorithm that cuBLASLt proposes, as a library takes it."""
    return _fused(ctx, _product(ctx.case))


def _transpose(_: Context, t: Tensors) -> dict[str, Any]:
    return {"weight": t.weight.t().contiguous()}


@OP.variant(
    "laid_out",
    "the same with the weight laid out ahead as (K, N)",
    role="published",
    rows=("S10",),
    inputs=(_X, Tensor("weight", ("K", "N")), _BIAS),
    encode=_transpose,
    unsupported=needs(_laid_out),
)
def laid_out(ctx: Context) -> Launch:
    """The text's other step. Which layout is faster depends on the sizes and on the GPU."""
    return _fused(ctx, _laid_out(ctx.case))


@OP.variant(
    "tuned",
    f"as epilogue, by the fastest of the {MANY} algorithms that cuBLASLt proposes",
    rows=("S10",),
    unsupported=needs(_product),
)
def tuned(ctx: Context) -> Launch:
    """The algorithms are timed at the first call, before the case is timed."""
    return _fused(ctx, _product(ctx.case), MANY)
