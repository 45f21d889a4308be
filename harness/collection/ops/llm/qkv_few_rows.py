"""Queries, keys and values of few new tokens, as in decoding: a norm, three products and RoPE. Beyond the texts.

Twin of qkv_few_rows.cu.

x: (M, E). q_weight: (H D, E); k_weight and v_weight: (G D, E). cos, sin: (M, D / 2), of the angles of each token's
place. H heads of queries, G heads of keys and of values, of D elements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, aligned, blocks, widened
from harness.collection.ops.gemm._products import EXTREMES
from harness.collection.ops.llm._few_rows import EPSILON, FewRowsKernel, FewRowsProduct, normalised_product
from harness.model import Case, Traffic, Work
from harness.ops import (
    ITEMSIZE,
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

_WARPS = BLOCK // 32  # of `fused`
_BASE, _PLACES = 500_000.0, 32_768


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers, and the angles of Llama 3 at places anywhere in a long context."""
    import torch

    s, options = ctx.s, {"generator": ctx.generator, "device": ctx.device}
    shapes = {
        "x": (s.M, s.E),
        "gamma": (s.E,),
        "q_weight": (s.H * s.D, s.E),
        "k_weight": (s.G * s.D, s.E),
        "v_weight": (s.G * s.D, s.E),
    }
    places = torch.randint(_PLACES, (s.M, 1), **options).double()
    half = s.D // 2
    angles = places * _BASE ** (-torch.arange(half, device=ctx.device).double() / max(1, half))
    made = {name: torch.randn(shape, dtype=ctx.dtype, **options) for name, shape in shapes.items()}
    return made | {"cos": angles.cos().float(), "sin": angles.sin().float()}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each product with its error, turned; the sum of two products is rounded once more.

    Torch's functions also round the products, and the angles, to the case's type.
    """
    import torch

    unit, before = torch.finfo(ctx.dtype).eps, t.before
    (x, gamma) = widened(before.x, before.gamma)
    cos, sin = (table.to(x.dtype)[:, None] for table in (before.cos, before.sin))
    for name in "qkv":
        want, error = (
            one.unflatten(-1, (-1, ctx.s.D)) for one in normalised_product(x, gamma, getattr(before, f"{name}_weight"))
        )
        if name != "v":
            (first, second), (of_first, of_second) = want.chunk(2, -1), error.chunk(2, -1)
            want = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
            near = torch.cat((first.abs() + second.abs(),) * 2, -1) * unit
            error = torch.cat((of_first + of_second,) * 2, -1) + near
        yield Expected(name, getattr(t, name), want, error + unit * want.abs())


def work(s: Symbols, size: int) -> Work:
    """Each tensor is read or written once."""
    outputs = (s["H"] + 2 * s["G"]) * s["D"]
    angles = s["M"] * (s["D"] // 2) * 2 * ITEMSIZE["float32"]
    read = (outputs + s["M"] + 1) * s["E"] * size + angles
    return Work(read, s["M"] * outputs * size, flops=(("case", 2 * s["M"] * outputs * s["E"]),))


OP = Op(
    "qkv_few_rows",
    "queries, keys and values of few tokens: a norm, three products and RoPE",
    symbols={
        "M": "tokens",
        "E": "elements of a token's vector",
        "H": "heads of queries",
        "G": "heads of keys, and of values",
        "D": "elements of a head",
    },
    dtypes=("bfloat16", "float16"),
    inputs=(
        Tensor("x", ("M", "E")),
        Tensor("gamma", ("E",)),
        Tensor("q_weight", ("H * D", "E")),
        Tensor("k_weight", ("G * D", "E")),
        Tensor("v_weight", ("G * D", "E")),
        Tensor("cos", ("M", "D // 2"), "float32"),
        Tensor("sin", ("M", "D // 2"), "float32"),
    ),
    outputs=tuple(Tensor(name, ("M", heads, "D")) for name, heads in (("q", "H"), ("k", "G"), ("v", "G"))),
    make=make,
    check=check,
    extremes=Extremes(
        exempt={
            **EXTREMES.exempt,
            **dict.fromkeys(("cos", "sin"), "they lie between -1 and 1"),
            "outlier": "of one large element, a norm leaves the others' rounding errors",
        },
        largest={"bfloat16": 2.0**20, "float16": 2.0**4},
        why="sums of products are rounded to the type",
    ),
    work=work,
    items="M",
    item="tokens",
)


def odd(case: Case) -> str | None:
    """Why heads can't be turned; None if they can."""
    return "elements of a head are pairs: D must be even" if case.symbols["D"] % 2 else None


def _by_torch(ctx: Context, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Products of the normalised x; queries and keys are turned as transformers does it."""
    import torch
    from torch.nn import functional

    x, gamma, *weights, cos, sin = tensors
    x = functional.rms_norm(x, (ctx.s.E,), gamma, EPSILON)
    q, k, v = (functional.linear(x, weight).unflatten(-1, (-1, ctx.s.D)) for weight in weights)
    cos, sin = (torch.cat((table, table), -1).to(x.dtype)[:, None] for table in (cos, sin))

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turned(q), turned(k), v


def _launches(s: Symbols, size: int) -> Traffic:
    """Torch's kernels: x is written and read three times, and turning takes five kernels."""
    needed, turned = work(s, size), s["M"] * (s["H"] + s["G"]) * s["D"] * size
    x = s["M"] * s["E"] * size
    return Traffic(needed.read + 3 * x + 11 * turned // 2, needed.written + x + 9 * turned // 2)


def _inputs(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.gamma, t.q_weight, t.k_weight, t.v_weight, t.cos, t.sin


@OP.variant(
    "eager",
    "torch's functions, one after the other",
    role="baseline",
    devices=ANY,
    returns=True,
    traffic=_launches,
    unsupported=odd,
)
def eager(ctx: Context) -> Launch:
    """What a user's model does today."""
    return lambda t: _by_torch(ctx, *_inputs(t))


@compiled_variants(OP, "torch.compile of the same", unsupported=odd)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor fuses the norm, and what follows the products."""
    function = compiled(lambda *tensors: _by_torch(ctx, *tensors))
    return lambda t: function(*_inputs(t))


def _numbers(s: Any, stride: int) -> tuple[Any, ...]:
    counts = map(ctypes.c_uint32, (s.M, s.E, s.H, s.G, s.D // 2))
    return *counts, ctypes.c_int64(stride), ctypes.c_float(EPSILON)


def _macros(case: Case) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[case.dtype]}


def _pairs(values: Symbols) -> int:
    return int((values["H"] + 2 * values["G"]) * (values["D"] // 2))


@OP.variant("fused", "one kernel, a warp makes two sums, an element a lane; any length and address", unsupported=odd)
def fused(ctx: Context) -> Launch:
    """The starting point."""
    return _in_elements(ctx, ctx.s.D)


def _in_elements(ctx: Context, stride: int) -> Launch:
    kernel = ctx.kernel("qkv_few_rows.cu", "qkv_few_rows_fused", _macros(ctx.case))
    grid, numbers = blocks(_pairs(ctx.case.values), _WARPS), _numbers(ctx.s, stride)
    return lambda t: kernel(grid, BLOCK, *_inputs(t), t.q, t.k, t.v, *numbers)


def _product(case: Case) -> FewRowsProduct:
    return FewRowsProduct(case.symbols["M"], case.symbols["E"], _pairs(case.values), norm=True)


_KERNEL = FewRowsKernel(OP.name, _product, _macros)


@OP.variant(
    "tuned",
    "weights come to shared memory ahead of the work; beyond four rows of x tensor cores multiply",
    unsupported=odd,
    tuning=_KERNEL.tuning,
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where rows aren't whole packs, or x is too long for shared memory, or begins inside of a pack."""
    return prepared(ctx, ctx.s.D)


def prepared(ctx: Context, stride: int) -> Launch:
    """The launch of `tuned`. stride: elements from a head of keys or values to the next one, as a cache has them."""
    fallback = _in_elements(ctx, stride)
    kernel = _KERNEL.launching(ctx)
    if kernel is None:
        return fallback
    numbers = _numbers(ctx.s, stride)

    def launch(t: Tensors) -> None:
        if aligned(t.x, t.gamma, t.q_weight, t.k_weight, t.v_weight):
            kernel(*_inputs(t), t.q, t.k, t.v, *numbers)
        else:
            fallback(t)

    return launch
