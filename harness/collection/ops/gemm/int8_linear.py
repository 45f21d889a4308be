"""A linear layer in int8, y = (x w^T) * scales: rows S14 and S15. Twin of int8_linear.cu.

x is (M, K) with one scale, or one for each of its rows, and so has the weight (N, K). The sums are int32, and exact.
The dtype of a case is y's. The leanest form that is known writes int8 in place of float16, and the work counts that, so
a variant that writes more is further from the ceiling.

Each case reports the error of its y against the product in float64 of what x and the weight were before they were
quantised (`_int8`). So a case of int8 shows what quantising costs, and `float16` what rounding to float16 costs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, INDEX_TYPE, LIMIT_32, aligned, blocks
from harness.collection.ops.gemm import _int8, _int8_plan
from harness.collection.ops.gemm._products import needs, prepared
from harness.cuda import cublaslt
from harness.cuda.cublaslt import MANY, Gemm, Order
from harness.model import Case, Traffic, Work
from harness.ops import (
    Choice,
    Compile,
    Context,
    Expected,
    Extremes,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_ORDERED = 32  # columns that cuBLASLt's own orders keep together
_FEWEST_ROWS, _MULTIPLE = 17, 8  # that torch._int_mm takes on a GPU: rows, and a factor of the other sizes


def _scales_of_x(s: Symbols) -> tuple[int]:
    return (s["M"] if s["scales"] == "token" else 1,)


def _scales_of_weight(s: Symbols) -> tuple[int]:
    return (1 if s["scales"] == "tensor" else s["N"],)


_X, _WEIGHT = Tensor("x", ("M", "K"), "int8"), Tensor("weight", ("N", "K"), "int8")
_SCALES = Tensor("x_scale", _scales_of_x, "float32"), Tensor("weight_scale", _scales_of_weight, "float32")


def make(ctx: Context) -> dict[str, Any]:
    """Normal data, quantised. y_scale takes the largest result to 127, as a calibration finds it ahead of time."""
    x, weight = _int8.real(ctx)
    largest = max(float(part.abs().max()) for _, part in _int8.products(x, weight))
    (x8, x_scale), (weight8, weight_scale) = (
        _int8.quantise(x, per_row=ctx.s.scales == "token"),
        _int8.quantise(weight, per_row=ctx.s.scales != "tensor"),
    )
    y_scale = x_scale.new_full((1,), largest / _int8.LARGEST)
    return {"x": x8, "weight": weight8, "x_scale": x_scale, "weight_scale": weight_scale, "y_scale": y_scale}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be; its errors against the real product are reported.

    An output of float16 may be off by a unit in its last place, an output of int8 by half a step more. The variant
    `float16` multiplies the numbers as they were before quantising: its y is held to their product, and its inputs are
    rounded, too.
    """
    import torch

    given, errors, unit = t.before, _int8.Inaccuracy(), float(torch.finfo(torch.float16).eps)
    real_x, real_weight = _int8.real(ctx)
    of_x, of_weight = given.x_scale.double().unsqueeze(1), given.weight_scale.double()
    half_step = t.y_scale.double() / 2 if ctx.case.variant in _OF_INT8 else None
    quantised = _int8.products(given.x, given.weight)
    for (here, sums), (_, exact) in zip(quantised, _int8.products(real_x, real_weight), strict=True):
        errors.add(t.y[here], exact)
        want, allowed = sums * (of_x[here] if len(of_x) > 1 else of_x) * of_weight, None
        if ctx.case.variant == "float16":
            want = exact
            allowed = unit * (exact.abs() + real_x[here].norm(dim=1, keepdim=True) * real_weight.norm(dim=1))
        elif half_step is not None:
            want = want.clamp(_int8.LOWEST * t.y_scale.double(), _int8.HIGHEST * t.y_scale.double())
            allowed = unit * want.abs() + half_step
        yield Expected("y", t.y[here], want, unit * want.abs() if allowed is None else allowed, here.start * ctx.s.N)
    for name, value in errors.figures.items():
        ctx.report(name, value)


def work(s: Symbols, _: int) -> Work:
    """Each operand is read once, and y is written once in int8."""
    weights = s["N"] * s["K"]
    scales = 4 * (1 + _scales_of_x(s)[0] + _scales_of_weight(s)[0])
    return Work(read=s["M"] * s["K"] + weights + scales, written=s["M"] * s["N"])


OP = Op(
    "int8_linear",
    "y = (x w^T) * scales, a linear layer in int8",
    symbols={"M": "rows of x", "K": "columns of x", "N": "columns of y"},
    choices={
        "scales": Choice(
            "x and the weight have one scale each; or the weight one for each row; or both one for each row",
            ("tensor", "channel", "token"),
        ),
        "data": Choice("normal, or with some columns of x 20 to 100 times larger", ("normal", "outliers")),
    },
    dtypes=("float16",),
    inputs=(_X, _WEIGHT, *_SCALES, Tensor("y_scale", (1,), "float32")),
    outputs=(Tensor("y", ("M", "N")),),
    make=make,
    check=check,
    extremes=Extremes(exempt={"all": "its numbers are integers, and scales that were computed from them"}),
    work=work,
    flops={"int8": "2 * M * N * K"},
)


def _elements(s: Symbols) -> tuple[int, int]:
    """Elements of both operands, and of the result."""
    return s["M"] * s["K"] + s["N"] * s["K"], s["M"] * s["N"]


def _eager_traffic(s: Symbols, _: int) -> Traffic:
    """The sums in int32, their product with each kind of scales in float32, and y."""
    operands, y = _elements(s)
    products = 2 if s["scales"] == "token" else 1
    return Traffic(read=operands + 4 * y + products * 4 * y, written=4 * y + products * 4 * y + 2 * y)


def _int32_traffic(s: Symbols, _: int) -> Traffic:
    operands, y = _elements(s)
    return Traffic(read=operands + 4 * y, written=4 * y + 2 * y)


def _fused_traffic(s: Symbols, _: int) -> Traffic:
    """Both operands, the scales of both, and y in float16."""
    operands, y = _elements(s)
    return Traffic(read=operands + 4 * (_scales_of_x(s)[0] + _scales_of_weight(s)[0]), written=2 * y)


def _by_torch(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    import torch

    rows = x.shape[0]
    if rows < _FEWEST_ROWS:  # which users fill up with zeros, as torch asks for on a GPU
        x = torch.nn.functional.pad(x, (0, 0, 0, _FEWEST_ROWS - rows))
    sums = torch._int_mm(x, weight.t())[:rows]
    if len(x_scale) == 1:
        return (sums * (x_scale * weight_scale)).half()
    return (sums * x_scale.unsqueeze(1) * weight_scale).half()


def _too_odd(case: Case) -> str | None:
    """Why torch can't; on a CPU it can."""
    s = case.symbols
    if case.device == "cuda" and (s["K"] % _MULTIPLE or s["N"] % _MULTIPLE):
        return f"torch._int_mm needs K and N that are multiples of {_MULTIPLE}"
    return None


@OP.variant(
    "eager",
    "torch._int_mm, of fewer than 17 rows with rows of zeros, then the scales, then float16",
    role="baseline",
    rows=("S14",),
    devices=ANY,
    returns=True,
    traffic=_eager_traffic,
    unsupported=_too_odd,
)
def eager(_: Context) -> Launch:
    """What a user has: torch gives the sums of int32."""
    return lambda t: (_by_torch(t.x, t.weight, t.x_scale, t.weight_scale),)


@compiled_variants(OP, "torch.compile of the same", traffic=_int32_traffic, unsupported=_too_odd)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel of what follows the product. The second mode may make it part of the product."""
    function = compiled(_by_torch)
    return lambda t: (function(t.x, t.weight, t.x_scale, t.weight_scale),)


def _halves(ctx: Context, _: Tensors) -> dict[str, Any]:
    return {name: value.half() for name, value in zip(("x", "weight"), _int8.real(ctx), strict=True)}


@OP.variant(
    "float16",
    "F.linear of the same numbers in float16",
    arithmetic="float16",
    role="baseline",
    rows=("S14", "S15"),
    devices=ANY,
    inputs=(Tensor("x", ("M", "K")), Tensor("weight", ("N", "K"))),
    encode=_halves,
    returns=True,
)
def float16(_: Context) -> Launch:
    """The text before, which is what a user has without quantising."""
    import torch

    return lambda t: (torch.nn.functional.linear(t.x, t.weight),)


def _product(case: Case, out: str, order: Order = "") -> Gemm:
    s = case.symbols
    alpha = "one" if out == "int32" else "device" if dict(case.choices)["scales"] == "tensor" else "columns"
    return Gemm(s["M"], s["N"], s["K"], "int8", out, alpha=alpha, order=order)  # type: ignore[arg-type]


def _to_int32(case: Case, order: Order = "") -> Gemm:
    return _product(case, "int32", order)


def _to_int8(case: Case) -> Gemm:
    return _product(case, "int8")


def _width(n: int) -> int:
    """Elements of a row that a thread of our kernel takes."""
    return next(width for width in (8, 4, 1) if n % width == 0)


def _to_int32_here(case: Case, order: Order = "") -> str | None:
    """Why the product with sums of int32, and our kernel after it, can't run; None if they can."""
    s = case.symbols
    if s["M"] * s["N"] // _width(s["N"]) >= LIMIT_32:
        return f"counts in 32 bits: for fewer than 2^31 times {_width(s['N'])} elements of y"
    return cublaslt.obstacle(_to_int32(case, order))


@OP.variant(
    "int32_out",
    "cuBLASLt's product with sums of int32, then a kernel of ours that scales them",
    role="published",
    rows=("S14", "S15"),
    traffic=_int32_traffic,
    unsupported=_to_int32_here,
)
def int32_out(ctx: Context) -> Launch:
    """The text's first way: exact, and four bytes an element that are written and read again."""
    return _scaled(ctx, _to_int32(ctx.case))


def _scaled(ctx: Context, product: Gemm) -> Launch:
    """The product into sums that calls share, and y from them."""
    import torch

    matmul, dequantise = prepared(ctx, product), _dequantiser(ctx, by_32=bool(product.order))
    sums = torch.empty((ctx.s.M, ctx.s.N), dtype=torch.int32, device=ctx.device)

    def launch(t: Tensors) -> None:
        matmul(t.x, t.weight, sums)
        dequantise(sums, t)

    return launch


def _dequantiser(ctx: Context, *, by_32: bool) -> Callable[[torch.Tensor, Tensors], None]:
    """Scale sums into t.y. by_32: the sums are in cuBLASLt's order COL32."""
    s = ctx.s
    width = _width(s.N)
    kernels = {
        each: ctx.kernel(
            "int8_linear.cu",
            "dequantise",
            {
                "WIDTH": each,
                "INDEX": INDEX_TYPE[64 if each == 1 else 32],
                **_int8_plan.scales(ctx.case),
                "BY_32": int(by_32),
            },
        )
        for each in {width, 1}
    }

    def dequantise(sums: torch.Tensor, t: Tensors) -> None:
        each = width if aligned(sums, t.weight_scale, t.y) else 1
        word, bits = (ctypes.c_uint64, 64) if each == 1 else (ctypes.c_uint32, 32)
        units, in_a_row = s.M * s.N // each, s.N // each
        kernels[each](
            *(blocks(units), BLOCK, sums, t.x_scale, t.weight_scale, t.y),
            *(word(units), word(in_a_row), *cuda.fast_divisor(in_a_row, bits), ctypes.c_int64(s.M)),
        )

    return dequantise


def _ordered(order: Order) -> dict[str, Any]:
    """Options of a variant whose matrices are in orders of cuBLASLt's own."""

    def obstacle(case: Case) -> str | None:
        if case.symbols["K"] % _ORDERED or case.symbols["N"] % _ORDERED:
            return f"for K and N that are multiples of {_ORDERED}"
        return _to_int32_here(case, order)

    def encode(ctx: Context, t: Tensors) -> dict[str, Any]:
        x = t.x.view(ctx.s.M, -1, _ORDERED).transpose(0, 1).contiguous()
        return {"x": x, "weight": cublaslt.reordered(t.weight, _to_int32(ctx.case, order))}

    return {
        "role": "published",
        "rows": ("S14",),
        "traffic": _int32_traffic,
        "unsupported": obstacle,
        "encode": encode,
    }


@OP.variant("int32_out_col4", "the same in the orders COL32 and COL4_4R2_8C", **_ordered("COL4_4R2_8C"))
def int32_out_col4(ctx: Context) -> Launch:
    """Tensor cores of sm_75 were fed in this order. cuBLASLt says for itself where it takes it."""
    return _scaled(ctx, _to_int32(ctx.case, "COL4_4R2_8C"))


@OP.variant("int32_out_col32", "the same in the orders COL32 and COL32_2R_4R4", **_ordered("COL32_2R_4R4"))
def int32_out_col32(ctx: Context) -> Launch:
    """The order for tensor cores of sm_80."""
    return _scaled(ctx, _to_int32(ctx.case, "COL32_2R_4R4"))


@OP.variant(
    "fused",
    "a product of ours, which scales its sums in registers and writes float16; scales for rows and channels, any sizes",
    rows=("S14",),
    traffic=_fused_traffic,
    unsupported=_int8_plan.obstacle,
    tuning=_int8_plan.TUNING,
)
def fused(ctx: Context) -> Launch:
    """Sums are scaled in the registers that they were made in, so no sum is written to memory."""
    return _int8_plan.launch(ctx)


_ALPHA = Tensor("alpha", _scales_of_weight, "float32")
_FITS = needs(_to_int8)


def _no_int8(case: Case) -> str | None:
    """Why cuBLASLt can't write int8; None if it can."""
    if dict(case.choices)["scales"] == "token":
        return "cuBLASLt takes no scale for each row of x"
    return _FITS(case)


def _encode_scales(_: Context, t: Tensors) -> dict[str, Any]:
    """The factor from a sum to an output of int8: both inputs' scales over the output's scale."""
    import torch

    return {"alpha": torch.where(t.y_scale > 0, t.x_scale * t.weight_scale / t.y_scale, 0).float()}


def _decode(_: Context, t: Tensors) -> dict[str, Any]:
    return {"y": t.q.float() * t.y_scale}


_TO_INT8: dict[str, Any] = {
    "inputs": (_X, _WEIGHT, _ALPHA),
    "outputs": (Tensor("q", ("M", "N"), "int8"),),
    "encode": _encode_scales,
    "decode": _decode,
    "unsupported": _no_int8,
}
_OF_INT8 = ("int8_out", "tuned")


@OP.variant(
    "int8_out",
    "cuBLASLt's product, which scales its sums and writes int8",
    role="published",
    rows=("S14", "S15"),
    **_TO_INT8,
)
def int8_out(ctx: Context) -> Launch:
    """The text's second way: a quarter of the bytes of int32, and one more rounding. What follows reads int8."""
    return _to_q(ctx, 1)


@OP.variant(
    "tuned",
    f"as int8_out, by the fastest of the {MANY} algorithms that cuBLASLt proposes",
    rows=("S14",),
    **_TO_INT8,
)
def tuned(ctx: Context) -> Launch:
    """The algorithms are timed at the first call, before the case is timed."""
    return _to_q(ctx, MANY)


def _to_q(ctx: Context, algorithms: int) -> Launch:
    matmul = prepared(ctx, _to_int8(ctx.case), algorithms)
    return lambda t: matmul(t.x, t.weight, t.q, alpha=t.alpha)
