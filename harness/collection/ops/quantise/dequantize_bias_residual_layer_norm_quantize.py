"""From an int8 matrix product to the input of the next one, through a residual and LayerNorm: row S14.

h = acc * sx * sw + bias + residual is the next residual, y = LayerNorm(h) / sy in int8 the next input. LayerNorm works
on h as it is written, in the case's type. Twin of the .cu of this name. _dequantise.py says what the tensors are,
_integers.py how y is rounded. The epsilon is layer_norm's, 1e-5.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness import cuda
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, aligned
from harness.collection.ops.quantise import _dequantise as dequantise
from harness.collection.ops.quantise import _integers as integers
from harness.collection.ops.quantise._row_runs import RowRunPlan
from harness.collection.ops.quantise._row_units import UnitRowPlan
from harness.collection.ops.quantise._steps import CONVERSION, Steps, rows_and_columns, rows_grid, traffic
from harness.collection.ops.rows import _norm as norm
from harness.model import Case
from harness.ops import (
    ITEMSIZE,
    Built,
    Compile,
    Context,
    Expected,
    Launch,
    Op,
    Plan,
    Tensor,
    Tensors,
    Tuning,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_FILE = "dequantize_bias_residual_layer_norm_quantize.cu"
_MOST_BLOCKS = 2**31 - 1  # of a grid
_ROUNDED = 2**-19  # what a mean in float32 may lose: as a share of the row's largest element
_FLOAT = 2**-22  # what the last product and sum may lose: as a share of their terms


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What h must be, and y for this h.

    The normalised row may be off by 1e-5 of itself, and by the rounding of the mean, as layer_norm's may. `fused` and
    `tuned` are held to that. The other variants round the row to the case's type before they quantise it; and Inductor
    normalises h as it was before rounding.
    """
    before, last = t.before, not ctx.case.variant.startswith(("fused", "tuned"))  # so do plans that are tried
    gamma, beta, unit = before.gamma.double(), before.beta.double(), dequantise.half_unit(ctx)
    for part in dequantise.parts(ctx):
        sums = dequantise.wanted(ctx, before, part, stepwise=ctx.case.variant == "separate")
        yield dequantise.expected_sum(ctx, "h", t.h[part], sums, part.start * ctx.s.C)
    # A row without columns has no largest element, and y has none to be checked.
    for part in dequantise.parts(ctx) if ctx.s.C else ():
        h = t.h[part]
        row = norm.layer_normalised(h)
        value, scaled = row.xhat * gamma + beta, (row.xhat * gamma).abs()
        largest = (row.rstd * h.abs().amax(1))[:, None]
        off = 1e-5 * row.xhat.abs() + _ROUNDED * largest
        if last:
            off = off + unit * largest * (2 + row.xhat.abs())
        error = off * gamma.abs() + _FLOAT * (scaled + beta.abs())
        if last:
            error = error + unit * (scaled + value.abs())
        of = integers.Approximate(value, error)
        yield integers.expected("y", t.y[part], of, before.sy, part.start * ctx.s.C)


OP = Op(
    "dequantize_bias_residual_layer_norm_quantize",
    "h = acc * sx * sw + bias + residual, y = LayerNorm(h) / sy as 8-bit integers, acc in int32",
    symbols=dequantise.SYMBOLS,
    choices=dequantise.CHOICES,
    inputs=(
        *dequantise.PRODUCT,
        dequantise.RESIDUAL,
        Tensor("gamma", ("C",)),
        Tensor("beta", ("C",)),
        dequantise.SY,
    ),
    outputs=(Tensor("h", ("M", "C")), Tensor("y", ("M", "C"), "int8")),
    make=dequantise.make,
    check=check,
    extremes=dequantise.extremes("sx", "sw", "sy", "gamma"),
)


def _by_torch(
    dtype: torch.dtype,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    sy: torch.Tensor,
    *terms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    h = dequantise.add(*terms).to(dtype)
    return h, integers.to_integers(torch.nn.functional.layer_norm(h, gamma.shape, gamma, beta, norm.EPS), sy)


@OP.variant(
    "eager",
    "multiply, add twice, convert; layer_norm; divide, round, clamp, and convert",
    role="baseline",
    rows=("S14",),
    devices=ANY,
    returns=True,
    traffic=traffic(
        "int32 -> float32",
        "float32 -> float32",
        "float32 case -> float32",
        CONVERSION,
        "case -> case",
        "case -> float32",
        *["float32 -> float32"] * 2,
        "float32 -> int8",
    ),
)
def eager(ctx: Context) -> Launch:
    """Nine kernels; in float32 nothing is converted."""
    return lambda t: _by_torch(ctx.dtype, t.gamma, t.beta, t.sy, t.acc, t.sx, t.sw, t.bias, t.residual)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function, dtype = compiled(_by_torch), ctx.dtype
    return lambda t: tuple(function(dtype, t.gamma, t.beta, t.sy, t.acc, t.sx, t.sw, t.bias, t.residual))


@OP.variant(
    "separate",
    "five kernels: dequantise, add the bias, add the residual, normalise a row a block, quantise",
    role="published",
    rows=("S14",),
    traffic=traffic("int32 -> case", "case -> case", "case case -> case", "case -> case", "case -> int8"),
)
def separate(ctx: Context) -> Launch:
    """The text before. The kernels but LayerNorm's take one element a thread."""
    steps = Steps(ctx)
    one, other = steps.between()
    dequantised, biased = steps.step("dequantise"), steps.step("bias")
    added, normalised = steps.step("residual", columns=False), steps.layer_norm()
    quantised = steps.step("quantise", scales=False)

    def launch(t: Tensors) -> None:
        dequantised(t.acc, t.sx, t.sw, one)
        biased(one, t.bias, other)
        added(other, t.residual, t.h)
        normalised(t.h, t.gamma, t.beta, one)
        quantised(one, t.sy, t.y)

    return launch


@OP.variant("fused", "one kernel, a block a row, one element a thread at a time", role="published", rows=("S14",))
def fused(ctx: Context) -> Launch:
    """The text after; any number of channels at any address."""
    return _block_a_row(ctx)


def _rule(case: Case) -> Plan | None:
    """The plan where no table has one; None where rows aren't whole units, or too long."""
    columns = case.symbols["C"]
    if not columns or _runs(case):
        return None
    rows = case.symbols["M"]
    few = UnitRowPlan.of_few(columns) if rows <= cuda.multiprocessors() else None
    plan = few or UnitRowPlan.of(columns)
    if plan is None or plan.grid(rows) > _MOST_BLOCKS:
        return None
    return {"lanes": plan.lanes, "count": plan.count, "together": plan.together, "early": int(plan.early)}


def _made(case: Case, plan: Plan) -> UnitRowPlan | None:
    lanes, count, together, early = (int(plan[name]) for name in _PARAMETERS)
    return UnitRowPlan.made(case.symbols["C"], lanes, count, together, early=bool(early))


def _refuse(case: Case, plan: Plan) -> str | None:
    made = _made(case, plan)
    if made is None:
        return "such teams can't keep these rows"
    return "a grid has fewer blocks" if made.grid(case.symbols["M"]) > _MOST_BLOCKS else None


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    made = _made(case, plan)
    assert made
    yield Built(_FILE, f"{case.op}_tuned", _macros(case) | made.macros, made.threads)


_PARAMETERS = {"lanes": (0, 1, 2, 4, 8, 16, 32), "count": range(1, 9), "together": (1, 2, 3, 4), "early": (0, 1)}


@OP.variant(
    "tuned",
    "rows in registers, up to 16 bytes of acc an access, several rows a warp or block",
    rows=("S14",),
    tuning=Tuning(lambda _: _PARAMETERS, _rule, _refuse, _kernels),
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where a row is too long for a block or has no element, or a tensor doesn't begin on 16 bytes."""
    fallback, planned = _block_a_row(ctx), _planned(ctx)
    if planned is None:
        return fallback
    kernel, grid, threads = planned
    sizes = ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.C)

    def launch(t: Tensors) -> None:
        given = _tensors(t)
        if aligned(*given):
            kernel(grid, threads, *given, *sizes)
        else:
            fallback(t)

    return launch


def _planned(ctx: Context) -> tuple[cuda.Kernel, int, int] | None:
    """The kernel for rows that aren't whole units, or for rows that are, its grid, and the threads of a block."""
    runs, found = _runs(ctx.case), ctx.plan()
    if runs:
        kernel = ctx.kernel(_FILE, f"{ctx.case.op}_runs", _macros(ctx.case) | runs.macros)
        return kernel, runs.grid(ctx.s.M, cuda.multiprocessors()), runs.threads
    plan = _made(ctx.case, found) if found else None
    if plan is None:
        return None
    kernel = ctx.kernel(_FILE, f"{ctx.case.op}_tuned", _macros(ctx.case) | plan.macros)
    return kernel, plan.grid(ctx.s.M), plan.threads


def _runs(case: Case) -> RowRunPlan | None:
    channel = case.values["scales"] == "channel"
    return RowRunPlan.of(case.symbols["C"], ITEMSIZE[case.dtype], channel=channel)


def _block_a_row(ctx: Context) -> Launch:
    kernel = ctx.kernel(_FILE, f"{ctx.case.op}_fused", _macros(ctx.case))
    return lambda t: kernel(rows_grid(ctx), BLOCK, *_tensors(t), *rows_and_columns(ctx))


def _macros(case: Case) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[case.dtype], "CHANNEL": int(case.values["scales"] == "channel")}


def _tensors(t: Tensors) -> tuple[torch.Tensor, ...]:
    return t.acc, t.sx, t.sw, t.bias, t.residual, t.gamma, t.beta, t.sy, t.h, t.y
