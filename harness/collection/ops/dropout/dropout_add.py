"""Dropout and an addition, y = dropout(x) + addend, and the mask that the backward needs: row O7.

Twin of dropout_add.cu. The mask is a byte an element, or a bit of it in int32 words (_bits.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.bits import WORDS, bytes_of_bits, unpack
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
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, aligned, blocks
from harness.model import Traffic, Work
from harness.ops import Compile, Context, Expected, Extremes, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_BYTES = (Tensor("y", ("N",)), Tensor("mask", ("N",), "bool"))
_BITS = (Tensor("y", ("N",)), Tensor("mask", (WORDS,), "int32"))


def check(ctx: Context, t: Tensors) -> Iterator[Expected | str]:
    """The mask keeps the right share, and y is what this mask asks for."""
    yield from expected_share(ctx, t.mask)
    yield from expected_y(ctx, t, t.before.x.float(), t.before.addend.float())


def work(s: Symbols, size: int) -> Work:
    """The mask is a bit an element, whatever a variant makes of it."""
    tensor = s["N"] * size
    return Work(read=2 * tensor + CALL.bytes(s, "float32"), written=tensor + bytes_of_bits(s["N"]))


def _unfused(symbols: Symbols, size: int) -> Traffic:
    """Dropout writes a tensor and the byte mask; the addition reads that tensor again."""
    tensor, mask = symbols["N"] * size, symbols["N"]
    return Traffic(read=3 * tensor, written=2 * tensor + mask)


OP = Op(
    "dropout_add",
    "y = dropout(x) + addend, and the mask of what is kept",
    symbols={"N": "elements"},
    choices=DROPPED,
    inputs=(Tensor("x", ("N",)), Tensor("addend", ("N",)), CALL),
    outputs=_BYTES,
    check=check,
    extremes=Extremes(
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**120),
        why="the kept numbers grow by 1 / (1 - p), and two of them are added, in float32",
    ),
    work=work,
)


@OP.variant(
    "eager",
    "native_dropout, then an addition",
    role="baseline",
    rows=("O7",),
    devices=ANY,
    traffic=_unfused,
    returns=True,
)
def eager(ctx: Context) -> Launch:
    """It takes two kernels, and a tensor between them."""
    function = _chain(ctx.s.p)
    return lambda t: function(t.x, t.addend)


@compiled_variants(OP, "torch.compile of the same", outputs=_BYTES, unsupported=input_itself(1.0, "addend"))
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel, with its own random numbers."""
    function = compiled(_chain(ctx.s.p))
    return lambda t: function(t.x, t.addend)


@OP.variant(
    "fused_bytes", "one kernel, four elements a thread, byte mask", role="published", rows=("O7",), outputs=_BYTES
)
def fused_bytes(ctx: Context) -> Launch:
    """The text's fusion."""
    return _launch(ctx, "dropout_add_bytes", WIDE)


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.mask, ctx.s.N)}


@OP.variant(
    "fused_bitmask",
    "the same with a bit an element, eight lanes a word",
    role="published",
    rows=("O7",),
    outputs=_BITS,
    decode=_decode,
)
def fused_bitmask(ctx: Context) -> Launch:
    """The mask has a bit an element, as in row D3."""
    return _launch(ctx, "dropout_add_bitmask", WIDE)


@OP.variant(
    "tuned", "eight elements a draw, 16-byte packs, a mask byte a lane", rows=("O7",), outputs=_BITS, decode=_decode
)
def tuned(ctx: Context) -> Launch:
    """Loads are under way while the numbers are drawn; see dropout_add.cu."""
    return _launch(ctx, "dropout_add_tuned", NARROW)


def _chain(probability: float) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """The function that a user writes, which gives y and the mask."""
    import torch

    def dropout_add(x: torch.Tensor, addend: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, mask = torch.native_dropout(x, probability, True)
        return kept + addend, mask

    return dropout_add


def _launch(ctx: Context, entry: str, bits: int) -> Launch:
    """A launch of the kernel `entry`, which draws numbers of `bits` bits."""
    kernel = ctx.kernel("dropout_add.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    random = arguments(ctx, bits)
    threads, whole = split(ctx.s.N, bits)

    def launch(t: Tensors) -> None:
        packs = whole if aligned(t.x, t.addend, t.y, t.mask) else 0
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(packs)
        kernel(blocks(threads), BLOCK, t.x, t.addend, t.call, t.y, t.mask, *sizes, *random)

    return launch
