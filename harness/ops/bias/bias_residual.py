"""Bias and residual, y = x + bias + residual over (R, C): rows S3 and S12. Twin of bias_residual.cu.

Our kernels add in float and round the sum once; `eager`, and `half2` as the text has it, round x + bias as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.model import Case, Traffic
from harness.ops import ITEMSIZE, Context, Launch, Op, Symbols, Tensor, Tensors
from harness.ops._baselines import compiled
from harness.ops._elementwise import BLOCK, BOTH, CUDA_TYPE, PACK_BYTES, aligned, blocks, widened

if TYPE_CHECKING:
    import torch

PAIR = {"float16": "__half2", "bfloat16": "__nv_bfloat162"}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    return {"y": add(*widened(t.x, t.bias, t.residual))}


def add(x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The sum as a user writes it: x and residual (R, C), bias (C)."""
    return x + bias + residual


OP = Op(
    "bias_residual",
    "y = x + bias + residual",
    symbols={"R": "rows", "C": "columns, one bias each"},
    inputs=(Tensor("x", ("R", "C")), Tensor("bias", ("C",)), Tensor("residual", ("R", "C"))),
    outputs=(Tensor("y", ("R", "C")),),
    reference=reference,
    # Relative as everywhere. Absolute: x + bias may be far larger than the sum, and rounding it alone is off by half a
    # unit in its last place, which of normal random numbers is that of a number below 16.
    tolerance={"float32": (1e-6, 2**-21), "float16": (1e-3, 2**-8), "bfloat16": (8e-3, 2**-5)},
)


def two_passes(symbols: Symbols, itemsize: int) -> Traffic:
    """There are two kernels: the first writes x + bias and the second reads it."""
    tensor = symbols["R"] * symbols["C"] * itemsize
    return Traffic(read=3 * tensor + symbols["C"] * itemsize, written=2 * tensor)


def _needs_halves(together: int) -> Callable[[Case], str | None]:
    def reason(case: Case) -> str | None:
        if case.dtype == "float32":
            return "for halves only"
        if case.symbols["C"] % together:
            return f"for rows of a multiple of {together} elements only"
        return None

    return reason


@OP.variant("eager", "two additions, two kernels", role="baseline", devices=BOTH, returns=True, traffic=two_passes)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (add(t.x, t.bias, t.residual),)


@OP.variant("compile", "torch.compile of the same", role="baseline", devices=BOTH, returns=True)
def compile_(_: Context) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(add)
    return lambda t: (function(t.x, t.bias, t.residual),)


@OP.variant("scalar", "one kernel, one element a thread", role="published", rows=("S3", "S12"))
def scalar(ctx: Context) -> Launch:
    """The text starts here."""
    return _together(ctx, "bias_residual_scalar", 1)


@OP.variant(
    "half2", "two halves a thread, added as a pair", role="published", rows=("S12",), unsupported=_needs_halves(2)
)
def half2(ctx: Context) -> Launch:
    """The text's optimisation. It is `scalar` where a pair doesn't begin on 4 bytes."""
    return _together(ctx, "bias_residual_half2", 2)


@OP.variant(
    "packed8",
    "eight halves a thread, 16 bytes an access",
    role="published",
    rows=("S3", "S12"),
    unsupported=_needs_halves(8),
)
def packed8(ctx: Context) -> Launch:
    """`half2` with the widest accesses. It is `scalar` where a pack doesn't begin on 16 bytes."""
    return _together(ctx, "bias_residual_packed", 8)


@OP.variant("tuned", "16-byte packs for floats too, in rows of any length, at any address", rows=("S3", "S12"))
def tuned(ctx: Context) -> Launch:
    """It loads packs of biases where rows and addresses allow it; otherwise a pack may go on in the next row."""
    pack, n = PACK_BYTES // ITEMSIZE[ctx.case.dtype], ctx.s.R * ctx.s.C
    kernel, word = _kernel(ctx, "bias_residual_any", n)
    columns = _columns(ctx.s.C, word)
    whole: Launch | None = _together(ctx, "bias_residual_packed", pack) if ctx.s.C % pack == 0 else None

    def launch(t: Tensors) -> None:
        tensors = t.x, t.bias, t.residual, t.y
        if whole and aligned(*tensors):
            whole(t)
            return
        vector = ctypes.c_int(aligned(t.x, t.residual, t.y))
        kernel(blocks(-(-n // pack)), BLOCK, *tensors, word(n), vector, *columns)

    return launch


def _together(ctx: Context, entry: str, together: int) -> Launch:
    """A kernel whose threads take `together` neighbours each; `scalar` where tensors aren't aligned to that."""
    count = ctx.s.R * ctx.s.C // together
    kernel, word = _kernel(ctx, entry, count)
    columns = _columns(ctx.s.C // together, word)
    alignment = together * ITEMSIZE[ctx.case.dtype]
    fallback: Launch | None = scalar(ctx) if together > 1 else None

    def launch(t: Tensors) -> None:
        tensors = t.x, t.bias, t.residual, t.y
        if fallback and any(tensor.data_ptr() % alignment for tensor in tensors):
            fallback(t)
            return
        kernel(blocks(count), BLOCK, *tensors, word(count), *columns)

    return launch


def _kernel(ctx: Context, entry: str, count: int) -> tuple[cuda.Kernel, type[ctypes.c_uint32 | ctypes.c_uint64]]:
    """A kernel that counts up to `count`, and the type of its indexes."""
    small = count < 2**31
    macros: dict[str, str | int] = {
        "SCALAR": CUDA_TYPE[ctx.case.dtype],
        "INDEX": "unsigned" if small else "unsigned long long",
    }
    if ctx.case.dtype in PAIR:
        macros["PAIR"] = PAIR[ctx.case.dtype]
    return ctx.kernel("bias_residual.cu", entry, macros), ctypes.c_uint32 if small else ctypes.c_uint64


def _columns(count: int, word: type[ctypes.c_uint32 | ctypes.c_uint64]) -> tuple[Any, ...]:
    """The length of a row as the kernels take it: with the multiplier and the shift that stand for a division."""
    # An empty tensor may have rows of length 0; nothing is launched for it.
    return word(count), *cuda.fast_divisor(max(1, count), 8 * ctypes.sizeof(word))
