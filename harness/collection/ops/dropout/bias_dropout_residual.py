"""Bias, dropout and a residual, y = dropout(x + bias) + residual, and the mask that the backward needs: row D5.

Twin of bias_dropout_residual.cu. The mask is a byte an element, or a bit of it in int32 words (_bits.py), in
row-major order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.bits import bytes_of_bits, unpack
from harness.collection.ops.dropout._dropout import (
    CALL,
    DROPPED,
    NARROW,
    WIDE,
    arguments,
    expected_share,
    expected_y,
    input_itself,
    split,
)
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, INDEX_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Traffic, Work
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

    from harness.cuda import Kernel

_BYTES = (Tensor("y", ("R", "C")), Tensor("mask", ("R", "C"), "bool"))
_BITS = (Tensor("y", ("R", "C")), Tensor("mask", ("cdiv(R * C, 32)",), "int32"))


def check(ctx: Context, t: Tensors) -> Iterator[Expected | str]:
    """The mask keeps the right share, and y is what this mask asks for; eager's x + bias is rounded once more."""
    yield from expected_share(ctx, t.mask)
    yield from expected_y(ctx, t, t.before.x.float() + t.before.bias.float(), t.before.residual.float())


def work(s: Symbols, size: int) -> Work:
    """The mask is a bit an element, whatever a variant makes of it."""
    elements = s["R"] * s["C"]
    read = (2 * elements + s["C"]) * size + CALL.bytes(s, "float32")
    return Work(read=read, written=elements * size + bytes_of_bits(elements))


def _unfused(symbols: Symbols, size: int) -> Traffic:
    """Bias and dropout write a tensor each, and dropout the byte mask; the next kernel reads the tensor again."""
    elements = symbols["R"] * symbols["C"]
    read = 4 * elements * size + symbols["C"] * size
    return Traffic(read=read, written=3 * elements * size + elements)


OP = Op(
    "bias_dropout_residual",
    "y = dropout(x + bias[column]) + residual, and the mask of what is kept",
    symbols={"R": "rows", "C": "columns, one bias each"},
    choices=DROPPED,
    inputs=(Tensor("x", ("R", "C")), Tensor("bias", ("C",)), Tensor("residual", ("R", "C")), CALL),
    outputs=_BYTES,
    check=check,
    extremes=Extremes(
        largest={"float32": 2.0**120, "bfloat16": 2.0**120, "float16": 2.0**14},
        why="x + bias may be rounded to the dtype before the scale, as torch does it",
    ),
    work=work,
)


@OP.variant(
    "eager",
    "an addition, native_dropout, an addition",
    role="baseline",
    rows=("D5",),
    devices=ANY,
    traffic=_unfused,
    returns=True,
)
def eager(ctx: Context) -> Launch:
    """It takes three kernels, and two tensors between them."""
    function = _chain(ctx.s.p)
    return lambda t: function(t.x, t.bias, t.residual)


@compiled_variants(OP, "torch.compile of the same", outputs=_BYTES, unsupported=input_itself(1.0, "residual"))
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel, with its own random numbers."""
    function = compiled(_chain(ctx.s.p))
    return lambda t: function(t.x, t.bias, t.residual)


@OP.variant(
    "fused_bytes",
    "one kernel, four elements a thread, biases one by one, byte mask",
    role="published",
    rows=("D5",),
    outputs=_BYTES,
)
def fused_bytes(ctx: Context) -> Launch:
    """The mask has a byte an element, as in row D2."""
    kernel = _kernels(ctx, "bias_dropout_residual_bytes")(False)
    return _launch(ctx, WIDE, lambda _: kernel)


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.mask, t.y.numel()).view(ctx.s.R, ctx.s.C)}


@OP.variant(
    "fused_bitmask",
    "the same with a bit an element, eight lanes a word",
    role="published",
    rows=("D5",),
    outputs=_BITS,
    decode=_decode,
)
def fused_bitmask(ctx: Context) -> Launch:
    """The text's kernel, with the mask of row D3."""
    kernel = _kernels(ctx, "bias_dropout_residual_bitmask")(False)
    return _launch(ctx, WIDE, lambda _: kernel)


@OP.variant(
    "tuned",
    "eight elements a draw, packs of 16 bytes, of biases too where rows allow, a mask byte a lane",
    rows=("D5",),
    outputs=_BITS,
    decode=_decode,
)
def tuned(ctx: Context) -> Launch:
    """Loads are under way while the numbers are drawn; see bias_dropout_residual.cu."""
    kernels = _kernels(ctx, "bias_dropout_residual_tuned")
    divides = ctx.s.C % (PACK_BYTES // ITEMSIZE[ctx.case.dtype]) == 0
    return _launch(ctx, NARROW, lambda bias: kernels(divides and aligned(bias)))


def _chain(probability: float) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """The function that a user writes, which gives y and the mask."""
    import torch

    def bias_dropout_residual(
        x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kept, mask = torch.native_dropout(x + bias, probability, True)
        return kept + residual, mask

    return bias_dropout_residual


def _index_bits(ctx: Context) -> int:
    return 32 if ctx.s.R * ctx.s.C < 2**31 else 64


def _kernels(ctx: Context, entry: str) -> Callable[[bool], Kernel]:
    """The kernel `entry` for biases that are loaded as packs, or aren't; compiled when asked for."""

    @cache
    def kernel(whole: bool) -> Kernel:
        macros: dict[str, str | int] = {
            "SCALAR": CUDA_TYPE[ctx.case.dtype],
            "INDEX": INDEX_TYPE[_index_bits(ctx)],
            "WHOLE": int(whole),
        }
        return ctx.kernel("bias_dropout_residual.cu", entry, macros)

    return kernel


def _launch(ctx: Context, bits: int, kernel_for: Callable[[torch.Tensor], Kernel]) -> Launch:
    """Launches of the kernel that suits the bias, which draws numbers of `bits` bits."""
    count, columns, index = ctx.s.R * ctx.s.C, max(1, ctx.s.C), _index_bits(ctx)
    word = ctypes.c_uint32 if index == 32 else ctypes.c_uint64
    last = word(columns), *cuda.fast_divisor(columns, index), *arguments(ctx, bits)
    threads, whole = split(count, bits)

    def launch(t: Tensors) -> None:
        packs = whole if aligned(t.x, t.residual, t.y, t.mask) else 0
        sizes = ctypes.c_int64(count), ctypes.c_int64(packs)
        tensors = t.x, t.bias, t.residual, t.call, t.y, t.mask
        kernel_for(t.bias)(blocks(threads), BLOCK, *tensors, *sizes, *last)

    return launch
