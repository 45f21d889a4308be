"""What linear layers share: their product by cuBLASLt, and a kernel that goes over its result."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from harness import cuda
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, INDEX_TYPE, LIMIT_32, PACK_BYTES, aligned, blocks
from harness.collection.ops.gemm._products import prepared
from harness.cuda.cublaslt import Activation, Gemm
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Context, Launch, Symbols, Tensors


def product(case: Case, *, bias: bool = True, activation: Activation = "", as_rows: bool = True) -> Gemm:
    """The product of x (M, K) and the weight, and its epilogue. The weight is (N, K) if `as_rows`, else (K, N)."""
    s = case.symbols
    return Gemm(s["M"], s["N"], s["K"], case.dtype, case.dtype, as_rows=as_rows, bias=bias, activation=activation)


def without_epilogue(case: Case) -> Gemm:
    """The product alone."""
    return product(case, bias=False)


def fused(ctx: Context, chosen: Gemm, algorithms: int = 1) -> Launch:
    """A launch of a product that adds the bias itself. algorithms: as `Matmul` takes them."""
    matmul = prepared(ctx, chosen, algorithms)
    return lambda t: matmul(t.x, t.weight, t.y, bias=t.bias)


def separate(ctx: Context, entry: str, macros: Mapping[str, int]) -> Launch:
    """A launch of the product alone, and of a kernel of <op>.cu that goes over y in packs of 16 bytes, in place.

    entry: the kernel for any rows; <entry>_whole is for rows of whole packs.
    """
    matmul, over = prepared(ctx, without_epilogue(ctx.case)), _over(ctx, entry, macros)

    def launch(t: Tensors) -> None:
        matmul(t.x, t.weight, t.y)
        over(t)

    return launch


def separate_traffic(s: Symbols, size: int) -> Traffic:
    """The product, and then a kernel that reads y and the bias, and writes y again."""
    y = s["M"] * s["N"] * size
    once = (s["M"] * s["K"] + s["N"] * s["K"] + s["N"]) * size
    return Traffic(read=once + y, written=2 * y)


def _over(ctx: Context, entry: str, macros: Mapping[str, int]) -> Launch:
    pack, n = PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.s.M * ctx.s.N
    bits = 32 if n < LIMIT_32 else 64
    word = ctypes.c_uint32 if bits == 32 else ctypes.c_uint64
    types: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "INDEX": INDEX_TYPE[bits], **macros}
    file = f"{ctx.op.name}.cu"
    any_rows = ctx.kernel(file, entry, types)
    whole_rows = ctx.kernel(file, f"{entry}_whole", types) if ctx.s.N % pack == 0 else None
    grid, columns = blocks(-(-n // pack)), (word(ctx.s.N), *cuda.fast_divisor(max(1, ctx.s.N), bits))

    def launch(t: Tensors) -> None:
        if whole_rows and aligned(t.y, t.bias):
            whole_rows(grid, BLOCK, t.y, t.bias, word(n), *columns)
        else:
            any_rows(grid, BLOCK, t.y, t.bias, word(n), ctypes.c_int32(aligned(t.y)), *columns)

    return launch
