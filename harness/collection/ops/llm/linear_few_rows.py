"""A linear layer for few rows of x, as in decoding, with what stands beside it: beyond the texts.

Twin of linear_few_rows.cu.

x: (M, K), the weight: (N, K), as nn.Linear has it; of gates (2 N, K), the rows of the gate and then those of up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, aligned, blocks, widened
from harness.collection.ops.gemm._products import EXTREMES
from harness.collection.ops.llm._few_rows import EPSILON, FewRowsKernel, FewRowsProduct, multiplied, normalised_product
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

FORMS = ("plain", "norm", "add", "gates")
"""What stands beside the product, by the kernel's number of it."""
_WARPS = BLOCK // 32  # of `fused`
_CHUNK = 2**24  # elements of the weight that are widened at a time


def _has_norm(values: Symbols) -> bool:
    return values["form"] in ("norm", "gates")


def _halves(values: Symbols) -> int:
    """Rows of the weight that an element of y needs."""
    return 2 if values["form"] == "gates" else 1


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y must be, in float32 at least.

    Products have the errors that _few_rows.py allows them, and y is rounded once more.
    """
    import torch

    unit = float(torch.finfo(ctx.dtype).eps)
    x, gamma, residual = widened(t.before.x, t.before.gamma, t.before.residual)
    step = max(1, _CHUNK // max(1, ctx.s.K))
    wants, errors = [], []
    weights = t.before.weight.unflatten(0, (_halves(ctx.case.values), -1))
    for first in range(0, ctx.s.N, step):
        parts = [weight[first : first + step] for weight in weights]
        has_norm = _has_norm(ctx.case.values)
        made = [normalised_product(x, gamma, part) if has_norm else multiplied(x, part) for part in parts]
        products, allowed = [one for one, _ in made], [one for _, one in made]
        want, error = products[0], allowed[0]
        if ctx.s.form == "add":
            before = residual[:, first : first + step]
            want, error = want + before, error + unit * before.abs()
        if ctx.s.form == "gates":
            opened = torch.nn.functional.silu(want)
            error = 1.1 * error * products[1].abs() + opened.abs() * allowed[1]
            want = opened * products[1]
        wants.append(want)
        errors.append(error + unit * want.abs())
    yield Expected("y", t.y, torch.cat(wants, -1), torch.cat(errors, -1))


def work(s: Symbols, size: int) -> Work:
    """Each tensor is read or written once, and each weight is multiplied with each row."""
    weights, y = _halves(s) * s["N"] * s["K"], s["M"] * s["N"]
    read = weights + s["M"] * s["K"] + _has_norm(s) * s["K"] + (s["form"] == "add") * y
    return Work(read * size, y * size, flops=(("case", 2 * s["M"] * weights),))


OP = Op(
    "linear_few_rows",
    "y = x w^T for few rows of x, with a norm, a residual or a gate beside it",
    symbols={"M": "rows of x", "K": "columns of x", "N": "columns of y"},
    choices={
        "form": Choice(
            "what stands beside the product: nothing, an RMSNorm of x, a residual that is added, an RMSNorm and a gate",
            FORMS,
        )
    },
    dtypes=("bfloat16", "float16"),
    inputs=(
        Tensor("x", ("M", "K")),
        Tensor("gamma", lambda s: (s["K"],) if _has_norm(s) else (0,)),
        Tensor("weight", lambda s: (_halves(s) * s["N"], s["K"])),
        Tensor("residual", lambda s: (s["M"], s["N"]) if s["form"] == "add" else (0,)),
    ),
    outputs=(Tensor("y", ("M", "N")),),
    check=check,
    extremes=Extremes(
        exempt={**EXTREMES.exempt, "outlier": "of one large element, a norm leaves the others' rounding errors"},
        largest={"bfloat16": 2.0**20, "float16": 2.0**6},
        why="products of a gate and its up are products of four numbers, in the range of the type",
    ),
    work=work,
    items="M",
    item="rows",
)


def _by_torch(
    ctx: Context, x: torch.Tensor, gamma: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    from torch.nn import functional

    if _has_norm(ctx.case.values):
        x = functional.rms_norm(x, (ctx.s.K,), gamma, EPSILON)
    y = functional.linear(x, weight)
    if ctx.s.form == "add":
        y = residual + y
    if ctx.s.form == "gates":
        gate, up = y.chunk(2, -1)
        y = functional.silu(gate) * up
    return y


def _launches(s: Symbols, size: int) -> Traffic:
    """Torch's kernels: what one writes, the next one reads."""
    needed, y, x = work(s, size), s["M"] * s["N"] * size, s["M"] * s["K"] * size
    between = {"plain": 0, "norm": x, "add": y, "gates": x + 3 * y}[s["form"]]
    return Traffic(needed.read + between, needed.written + between)


@OP.variant(
    "eager", "torch's functions, one after the other", role="baseline", devices=ANY, returns=True, traffic=_launches
)
def eager(ctx: Context) -> Launch:
    """What a user's model does today."""
    return lambda t: (_by_torch(ctx, t.x, t.gamma, t.weight, t.residual),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor fuses what stands beside the product; the second mode may write the product as well."""
    function = compiled(lambda *tensors: _by_torch(ctx, *tensors))
    return lambda t: (function(t.x, t.gamma, t.weight, t.residual),)


def _tensors(t: Tensors, outputs: int) -> tuple[Any, ...]:
    """The kernel's tensors: a gate's up has weights of its own."""
    return t.x, t.gamma, t.weight, t.weight[outputs:], t.residual, t.y


def _numbers(s: Any) -> tuple[Any, ...]:
    return *map(ctypes.c_uint32, (s.M, s.N, s.K)), ctypes.c_float(EPSILON)


def _macros(case: Case) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[case.dtype], "FORM": FORMS.index(str(case.values["form"]))}


def _pairs(values: Symbols) -> int:
    """Pairs of rows of the weight."""
    return int(values["N"]) if values["form"] == "gates" else blocks(values["N"], 2)


@OP.variant("fused", "one kernel, a warp makes two sums, an element a lane; any length and address")
def fused(ctx: Context) -> Launch:
    """The starting point."""
    kernel = ctx.kernel("linear_few_rows.cu", "linear_few_rows_fused", _macros(ctx.case))
    grid, numbers = blocks(_pairs(ctx.case.values), _WARPS), _numbers(ctx.s)
    return lambda t: kernel(grid, BLOCK, *_tensors(t, ctx.s.N), *numbers)


def _product(case: Case) -> FewRowsProduct:
    return FewRowsProduct(case.symbols["M"], case.symbols["K"], _pairs(case.values), _has_norm(case.values))


_KERNEL = FewRowsKernel(OP.name, _product, _macros)


@OP.variant(
    "tuned",
    "weights come to shared memory ahead of the work; beyond four rows of x tensor cores multiply",
    tuning=_KERNEL.tuning,
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where rows aren't whole packs, or x is too long for shared memory, or begins inside of a pack."""
    fallback: Launch = fused(ctx)
    kernel = _KERNEL.launching(ctx)
    if kernel is None:
        return fallback
    numbers = _numbers(ctx.s)

    def launch(t: Tensors) -> None:
        if aligned(t.x, t.gamma, t.weight):
            kernel(*_tensors(t, ctx.s.N), *numbers)
        else:
            fallback(t)

    return launch
