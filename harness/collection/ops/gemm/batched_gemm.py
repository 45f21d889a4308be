"""The products of attention over windows, at an odd number of tokens and padded: row S11. Twin of batched_gemm.cu.

product=scores is q (B, n, D) times k (B, n, D) transposed, and product=context is p (B, n, n) times v (B, n, D); B
counts windows and heads together. The dimension that makes rows of n elements is the one that is padded: to P, the next
multiple of `pad`. Factors are padded with zeros; a result's padding isn't looked at. The work is the n tokens' alone:
padding is work done, not needed.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, LIMIT_32, PACK_BYTES, aligned, blocks
from harness.collection.ops.gemm._products import EXTREMES, expected, needs, prepared
from harness.cuda import cublaslt
from harness.cuda.cublaslt import MANY, Gemm
from harness.model import Case, Traffic
from harness.ops import (
    ITEMSIZE,
    Choice,
    Compile,
    Context,
    Expected,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch


def padded(s: Symbols) -> int:
    """Tokens with what is added to them."""
    return -(-int(s["n"]) // int(s["pad"])) * int(s["pad"])


def _is_scores(s: Symbols) -> bool:
    return bool(s["product"] == "scores")


def _left(s: Symbols) -> tuple[int, ...]:
    """The left factor: q, or p."""
    return (s["B"], s["n"], s["D"] if _is_scores(s) else s["n"])


def _left_padded(s: Symbols) -> tuple[int, ...]:
    return _left(s) if _is_scores(s) else (s["B"], s["n"], padded(s))


def _right(s: Symbols) -> tuple[int, ...]:
    """The right factor: k, or v."""
    return (s["B"], s["n"], s["D"])


def _right_padded(s: Symbols) -> tuple[int, ...]:
    return (s["B"], padded(s), s["D"])


def _result(s: Symbols) -> tuple[int, ...]:
    return (s["B"], s["n"], s["n"] if _is_scores(s) else s["D"])


def _result_padded(s: Symbols) -> tuple[int, ...]:
    return (s["B"], s["n"], padded(s)) if _is_scores(s) else _result(s)


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be, from a product in higher precision."""
    right = t.before.right
    return expected("y", t.y, t.before.left, right if ctx.s.product == "scores" else right.mT)


OP = Op(
    "batched_gemm",
    "many small products: scores q k^T, or context p v, of attention over windows",
    symbols={"B": "products: windows times heads", "n": "tokens of a window", "D": "size of a head"},
    choices={
        "product": Choice("which of attention's two", ("scores", "context")),
        "pad": Choice("tokens are padded to a multiple of it", (8, 16)),
    },
    inputs=(Tensor("left", _left), Tensor("right", _right)),
    outputs=(Tensor("y", _result),),
    check=check,
    extremes=replace(EXTREMES, apart={"left": 0, "right": 0}),
    flops={"case": "2 * B * n * n * D"},
)


def _multiplied(s: Any) -> Any:
    """The function that a user writes."""
    import torch

    if s.product == "scores":
        return lambda left, right: torch.bmm(left, right.transpose(1, 2))
    return torch.bmm


@OP.variant("eager", "torch.bmm at n tokens", role="baseline", rows=("S11",), devices=ANY, returns=True)
def eager(ctx: Context) -> Launch:
    """What attention is without a fused kernel."""
    function = _multiplied(ctx.s)
    return lambda t: (function(t.left, t.right),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """The second mode also tries products that Inductor writes in Triton."""
    function = compiled(_multiplied(ctx.s))
    return lambda t: (function(t.left, t.right),)


def _product(case: Case, tokens: int) -> Gemm:
    """The product where the padded dimension has this size."""
    s = case.values
    n, k = (tokens, s["D"]) if _is_scores(s) else (s["D"], tokens)
    return Gemm(int(s["n"]), int(n), int(k), case.dtype, case.dtype, as_rows=_is_scores(s), batch=int(s["B"]))


def _odd(case: Case) -> Gemm:
    return _product(case, case.symbols["n"])


def _padded(case: Case) -> Gemm:
    return _product(case, padded(case.values))


@OP.variant(
    "odd",
    "cuBLASLt's batched product at n tokens",
    role="published",
    rows=("S11",),
    unsupported=needs(_odd),
)
def odd(ctx: Context) -> Launch:
    """The text before. Rows of 49 halves begin at any even address, so each element is moved by itself."""
    product = prepared(ctx, _odd(ctx.case))
    return lambda t: product(t.left, t.right, t.y)


def _encode(ctx: Context, t: Tensors) -> dict[str, Any]:
    """Both factors with zeros behind the tokens."""
    values = ctx.case.values
    return {"left": _wider(t.left, _left_padded(values)), "right": _wider(t.right, _right_padded(values))}


def _wider(values: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The values in a tensor of zeros of this shape."""
    wide = values.new_zeros(shape)
    wide[tuple(map(slice, values.shape))] = values
    return wide


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"y": t.wide[..., : _result(ctx.case.values)[-1]]}


_WIDE = (Tensor("wide", _result_padded),)
_PADDED: dict[str, Any] = {
    "rows": ("S11",),
    "inputs": (Tensor("left", _left_padded), Tensor("right", _right_padded)),
    "outputs": _WIDE,
    "encode": _encode,
    "decode": _decode,
    "unsupported": needs(_padded),
}


@OP.variant("padded", "the same at P tokens; what made the factors padded them", role="published", **_PADDED)
def padded_(ctx: Context) -> Launch:
    """The text after. What comes before writes rows of P elements in place of n, so no copy is counted."""
    product = prepared(ctx, _padded(ctx.case))
    return lambda t: product(t.left, t.right, t.wide)


def _counted_traffic(s: Symbols, size: int) -> Traffic:
    """The product, and before it the factors that are read as they are and written with their padding."""
    copied = [(_right(s), _right_padded(s)), *([] if _is_scores(s) else [(_left(s), _left_padded(s))])]
    narrow, wide = (sum(map(math.prod, shapes)) for shapes in zip(*copied, strict=True))
    factors = math.prod(_left_padded(s)) + math.prod(_right_padded(s))
    return Traffic(read=(narrow + factors) * size, written=(wide + math.prod(_result_padded(s))) * size)


def _too_many_packs(case: Case) -> str | None:
    """Why the product, and our kernel before it, can't run; None if they can."""
    most = max(map(math.prod, (_left_padded(case.values), _right_padded(case.values))))
    if most // _pack(case) >= LIMIT_32:
        return "counts packs of 16 bytes in 32 bits: for fewer than 2^31 of them"
    return cublaslt.obstacle(_padded(case))


@OP.variant(
    "padded_counted",
    "the same, but the factors come without padding, and a kernel of ours copies them first",
    role="published",
    rows=("S11",),
    outputs=_WIDE,
    decode=_decode,
    traffic=_counted_traffic,
    unsupported=_too_many_packs,
)
def padded_counted(ctx: Context) -> Launch:
    """What padding gains if nothing else writes it."""
    import torch

    values, s = ctx.case.values, ctx.s
    product, tokens = prepared(ctx, _padded(ctx.case)), padded(values)
    # Tokens are added behind the last row of a matrix (n, D), so the whole matrix is a row to the kernel.
    widen_right = _widener(ctx, s.B, s.n * s.D, tokens * s.D)
    right = torch.empty(_right_padded(values), dtype=ctx.dtype, device=ctx.device)
    if _is_scores(values):

        def scores(t: Tensors) -> None:
            widen_right(t.right, right)
            product(t.left, right, t.wide)

        return scores
    widen_left = _widener(ctx, s.B * s.n, s.n, tokens)
    left = torch.empty(_left_padded(values), dtype=ctx.dtype, device=ctx.device)

    def context(t: Tensors) -> None:
        widen_left(t.left, left)
        widen_right(t.right, right)
        product(left, right, t.wide)

    return context


def _widener(ctx: Context, rows: int, narrow: int, wide: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Copy rows of `narrow` elements into rows of `wide` ones, with zeros at their ends."""
    pack = _pack(ctx.case)
    in_a_row = wide // pack
    packs = rows * in_a_row
    macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "SHIFTED": int(narrow % pack != 0)}
    kernel = ctx.kernel("batched_gemm.cu", "widen_rows", macros)
    result_sizes = (ctypes.c_uint32(packs), ctypes.c_uint32(in_a_row), *cuda.fast_divisor(in_a_row, 32))
    given_sizes = ctypes.c_int64(rows), ctypes.c_int64(narrow)

    def widen(given: torch.Tensor, result: torch.Tensor) -> None:
        is_aligned = ctypes.c_int32(aligned(given))
        kernel(blocks(packs), BLOCK, given, result, *result_sizes, *given_sizes, is_aligned)

    return widen


def _pack(case: Case) -> int:
    """Elements of a pack."""
    return PACK_BYTES // ITEMSIZE[case.dtype]


@OP.variant("tuned", f"as padded, by the fastest of the {MANY} algorithms that cuBLASLt proposes", **_PADDED)
def tuned(ctx: Context) -> Launch:
    """The algorithms are timed at the first call, before the case is timed."""
    product = prepared(ctx, _padded(ctx.case), MANY)
    return lambda t: product(t.left, t.right, t.wide)
