"""What the ops that dequantise share: their tensors, inputs, and how far off their results may be.

acc is the int32 result of a product of two matrices of 8-bit integers. What it stands for is acc * sx * sw: sx is the
scale of the left factor, sw the scale of the right one, or of each of its columns. A bias for each column is added, and
a residual where there is one. The arithmetic is in float32, so that an acc beyond 2^24 is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.quantise._integers import SCALES, Approximate, scale_shape
from harness.ops import Context, Expected, Extremes, Tensor, Tensors

if TYPE_CHECKING:
    import torch

SYMBOLS = {"M": "rows", "C": "channels, one bias each"}
CHOICES = {"scales": SCALES}
ACC = Tensor("acc", ("M", "C"), "int32")
SX = Tensor("sx", (1,), "float32")
SW = Tensor("sw", scale_shape, "float32")
BIAS = Tensor("bias", ("C",))
RESIDUAL = Tensor("residual", ("M", "C"))
SY = Tensor("sy", (1,), "float32")
PRODUCT = (ACC, SX, SW, BIAS)
"""What every op of these reads."""

_SPREAD = 150_000.0
"""The standard deviation of acc in inputs: roughly that 768 products of two uniform 8-bit integers have."""
_STEPS = 2**-21
"""What the sums and products in float32 may lose: as a share of the sum of their terms' sizes."""
_CHECKED = 2**24
"""Elements checked at a time."""


def extremes(*scales: str) -> Extremes:
    """The extreme values that bias, residual and beta may have. scales: inputs that results are proportional to."""
    return Extremes(
        exempt=dict.fromkeys(scales, "only 0 and normal numbers are scales, and errors grow with them"),
        largest={"float32": 2.0**50, "bfloat16": 2.0**50, "float16": 2.0**14},
        why="sums are in float32, and `separate` rounds each of them to the dtype",
    )


def make(ctx: Context) -> dict[str, Any]:
    """Results of about 1, and scales of columns that differ by a factor of three."""
    import torch

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=ctx.generator, device=ctx.device)

    made = {"acc": normal(ctx.s.M, ctx.s.C).mul_(_SPREAD).round_().int()}
    made["sx"] = torch.full((1,), 0.03, device=ctx.device)
    share = torch.rand(scale_shape(ctx.case.values), generator=ctx.generator, device=ctx.device)
    made["sw"] = (0.5 + share) / (0.03 * _SPREAD)
    for tensor in ctx.op.inputs:
        if tensor.name == "residual":
            made["residual"] = normal(ctx.s.M, ctx.s.C).to(ctx.dtype)
        elif tensor.name == "sy":
            # Some of 300 normal numbers saturate.
            made["sy"] = torch.full((1,), 3.0 / 128, device=ctx.device)
        elif tensor.name not in made:
            made[tensor.name] = (normal(ctx.s.C) / 4 + (tensor.name == "gamma")).to(ctx.dtype)
    return made


def add(acc: torch.Tensor, sx: torch.Tensor, sw: torch.Tensor, *terms: torch.Tensor) -> torch.Tensor:
    """Add the terms to acc * sx * sw in float32, as a user writes it who leaves the conversions to torch."""
    result = acc * (sx * sw)
    for term in terms:
        result = result + term
    return result


def parts(ctx: Context) -> Iterator[slice]:
    """The rows, some at a time."""
    step = max(1, _CHECKED // max(1, ctx.s.C))
    return (slice(first, first + step) for first in range(0, ctx.s.M, step))


def half_unit(ctx: Context) -> float:
    """What rounding to the case's type may change, as a share of the number."""
    import torch

    return float(torch.finfo(ctx.dtype).eps) / 2


def wanted(ctx: Context, before: Tensors, part: slice, *, stepwise: bool) -> Approximate:
    """The sum of some rows, before it is rounded to its type.

    stepwise: whether each step's result is rounded to the case's type, but for the last one's.
    """
    value = before.acc[part].double() * (before.sx.double() * before.sw.double())
    terms = [before.bias.double()]
    if hasattr(before, "residual"):
        terms.append(before.residual[part].double())
    sizes, stored = value.abs(), value.new_zeros(())
    for term in terms:
        stored = stored + value.abs()
        value = value + term
        sizes = sizes + term.abs()
    return Approximate(value, _STEPS * sizes + (half_unit(ctx) * stored if stepwise else 0.0))


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What y, the sum in the case's type, must be: rounded once, or after each step for `separate`."""
    for part in parts(ctx):
        of = wanted(ctx, t.before, part, stepwise=ctx.case.variant == "separate")
        yield expected_sum(ctx, "y", t.y[part], of, part.start * ctx.s.C)


def expected_sum(ctx: Context, name: str, got: torch.Tensor, of: Approximate, start: int) -> Expected:
    """What an output in the case's type must be: a value within the error, rounded to the type."""
    import torch

    facts = torch.finfo(got.dtype)
    allowed = of.error + half_unit(ctx) * (of.value.abs() + of.error) + facts.tiny * facts.eps
    return Expected(name, got, of.value, allowed, start)
