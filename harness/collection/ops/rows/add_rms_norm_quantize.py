"""A residual connection, RMSNorm, and the norm in 8 bits: beyond the texts. Twin of add_rms_norm_quantize.cu.

q has the bits of e4m3 numbers (torch.float8_e4m3fn) or of integers, as bytes. Its scale is one number that is known
before, or one for each row: the row's largest number over the largest of the type (448, 127), as torchao has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.quantise._integers import rounded
from harness.collection.ops.rows import _add_norm as add_norm
from harness.collection.ops.rows import _norm as norm
from harness.model import Case, Traffic
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

LARGEST = {"e4m3": 448.0, "int8": 127.0}
"""The largest number of each type."""
LEAST = 1e-12
"""The least number that counts as the largest one of a row."""
_CHECKED = 2**22  # elements checked at a time
_LOST = 1e-5  # what float32 may lose of a number


def static_shape(symbols: Symbols) -> tuple[int, ...]:
    """The shape of the scale that is known before: empty if each row has one of its own."""
    return (1,) if symbols["scales"] == "tensor" else (0,)


def scale_shape(symbols: Symbols) -> tuple[int, ...]:
    """The shape of the scales of rows: empty if one scale is known before."""
    return (symbols["M"],) if symbols["scales"] == "row" else (0,)


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers; a static scale with which few numbers saturate."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device}
    shapes = {"x": (ctx.s.M, ctx.s.N), "residual": (ctx.s.M, ctx.s.N), "gamma": (ctx.s.N,)}
    made: dict[str, Any] = {name: torch.randn(shape, dtype=ctx.dtype, **options) for name, shape in shapes.items()}
    scale = 0.5 + torch.rand(static_shape(ctx.case.values), **options)
    return made | {"static_scale": scale * 6.0 / LARGEST[ctx.s.to]}


def as_bytes(values: torch.Tensor, to: str) -> torch.Tensor:
    """Numbers that are divided by their scale, as bytes of the type `to`: rounded, and saturated."""
    import torch

    largest = LARGEST[to]
    if to == "e4m3":
        return values.clamp(-largest, largest).to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.round(values).clamp(-128, 127).to(torch.int8).view(torch.uint8)


def numbers(q: torch.Tensor, to: str) -> torch.Tensor:
    """The numbers that the bytes are, in float32."""
    import torch

    return q.view(torch.float8_e4m3fn if to == "e4m3" else torch.int8).float()


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What sum, scales and q must be.

    The norm is of the sum as it was stored, and may be rounded to the case's type before it is divided, as torch does.
    q may be what any number within that error rounds to. It is compared with its own scale.
    """
    import torch

    yield add_norm.expected_sum(t)
    gamma, to = t.before.gamma.double(), ctx.s.to
    lost = _LOST + torch.finfo(ctx.dtype).eps / 2
    step = max(1, _CHECKED // max(1, ctx.s.N))
    for first in range(0, ctx.s.M, step):
        part = slice(first, first + step)
        y = norm.rms_normalised(t.sum[part]).xhat * gamma
        scale = t.before.static_scale.double()
        if ctx.s.scales == "row":
            want = y.abs().amax(1).clamp(min=LEAST) / LARGEST[to]
            yield Expected("scale", t.scale[part], want, lost * want, first)
            scale = t.scale[part, None].double()
        quotient = y / scale
        error = torch.where(quotient.isfinite(), lost * quotient.abs(), 0.0)
        low, high = (_as_numbers(quotient + end, to) for end in (-error, error))
        got = numbers(t.q[part], to)
        yield Expected("q", got, got.clamp(low, high), start=first * ctx.s.N)


def _as_numbers(values: torch.Tensor, to: str) -> torch.Tensor:
    """The numbers of the type that values are rounded to."""
    return rounded(values).float() if to == "int8" else numbers(as_bytes(values.float(), to), to)


OP = Op(
    "add_rms_norm_quantize",
    "sum = x + residual; q = RMSNorm(sum) / scale in 8 bits",
    symbols=norm.SYMBOLS,
    choices={
        "to": Choice("the type of 8 bits", ("e4m3", "int8")),
        "scales": Choice("whether each row has a scale, or one is known before", ("row", "tensor")),
    },
    inputs=(norm.X, add_norm.RESIDUAL, norm.GAMMA, Tensor("static_scale", static_shape, "float32")),
    outputs=(add_norm.SUM, Tensor("q", ("M", "N"), "uint8"), Tensor("scale", scale_shape, "float32")),
    make=make,
    check=check,
    extremes=Extremes(exempt={**norm.EXTREMES.exempt, "static_scale": "only normal numbers are scales"}),
    items="M",
    item="rows",
)


def _steps(
    ctx: Context, x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor, static_scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The same by torch's functions."""
    total, y, _ = add_norm.added(x, residual, gamma)
    if ctx.s.scales == "tensor":
        return total, as_bytes(y.float() / static_scale, ctx.s.to), static_scale.new_empty(0)
    scale = y.abs().amax(1).float().clamp(min=LEAST) / LARGEST[ctx.s.to]
    return total, as_bytes(y.float() / scale[:, None], ctx.s.to), scale


def _single_steps(symbols: Symbols, size: int) -> Traffic:
    """An addition, the norm, its largest numbers, a quotient, a clamp, a conversion; integers are rounded, too."""
    elements = symbols["M"] * symbols["N"]
    of_rows = 2 * size if symbols["scales"] == "row" else 0  # |y| is written, and read for its largest number
    rounding = 4 if symbols["to"] == "int8" else 0
    read = 2 * size + size + size + of_rows + 4 + rounding + 4
    written = size + size + of_rows // 2 + 4 + rounding + 4 + 1
    return Traffic(read * elements, written * elements)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.x, t.residual, t.gamma, t.static_scale, t.sum, t.q, t.scale


@OP.variant(
    "eager",
    "torch's functions, one after the other",
    role="baseline",
    devices=ANY,
    returns=True,
    traffic=_single_steps,
)
def eager(ctx: Context) -> Launch:
    """What a user writes today."""
    return lambda t: _steps(ctx, t.x, t.residual, t.gamma, t.static_scale)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape."""
    function = compiled(lambda *tensors: _steps(ctx, *tensors))
    return lambda t: function(t.x, t.residual, t.gamma, t.static_scale)


def _macros(case: Case) -> dict[str, int]:
    return {"INTEGERS": int(case.values["to"] == "int8"), "OF_ROW": int(case.values["scales"] == "row")}


@OP.variant("two_pass", "a block a row, which reads the sum again for q; any length and address")
def two_pass(ctx: Context) -> Launch:
    """The starting point."""
    return add_norm.two_pass(ctx, _arguments, **_macros(ctx.case))


@OP.variant(
    "tuned",
    "16 bytes an access; the sum stays in a warp, a block or a cluster, as the row asks for",
    tuning=add_norm.tuning(together=1, macros=_macros),
)
def tuned(ctx: Context) -> Launch:
    """`two_pass` runs where rows aren't whole packs or are too long, or packs aren't aligned."""
    return add_norm.planned(ctx, _arguments, **_macros(ctx.case))
