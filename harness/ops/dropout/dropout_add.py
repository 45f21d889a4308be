"""Dropout and an addition, y = dropout(x) + addend, and the mask that the backward needs: row O7.

Twin of dropout_add.cu. The mask is a byte an element, or a bit of it in int32 words (_bits.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness.model import Work
from harness.ops import Context, Launch, Op, Symbols, Tensor, Tensors
from harness.ops._baselines import compiled
from harness.ops._bits import WORDS, unpack
from harness.ops._elementwise import BLOCK, BOTH, CUDA_TYPE, aligned, blocks
from harness.ops.dropout._dropout import CALL, NARROW, PERCENT, WIDE, arguments, split, sum_complaint

if TYPE_CHECKING:
    import torch

_BITS = (Tensor("y", ("N",)), Tensor("mask", (WORDS,), "int32"))


def check(ctx: Context, t: Tensors) -> str | None:
    """The mask keeps the right share, and y is what this mask asks for."""
    return sum_complaint(ctx, t, t.before.x.float(), t.before.addend.float())


def _unfused(symbols: Symbols, size: int) -> Work:
    """Dropout writes a tensor and the byte mask; the addition reads that tensor again."""
    tensor, mask = symbols["N"] * size, symbols["N"]
    return Work(read=3 * tensor, written=2 * tensor + mask, flops=2 * symbols["N"])


OP = Op(
    "dropout_add",
    "y = dropout(x) + addend, and the mask of what is kept",
    symbols={"N": "elements", **PERCENT},
    inputs=(Tensor("x", ("N",)), Tensor("addend", ("N",)), CALL),
    outputs=(Tensor("y", ("N",)), Tensor("mask", ("N",), "bool")),
    defaults={"P": "10"},
    check=check,
    flops="2 * N",
)


@OP.variant("eager", "native_dropout, then an addition", rows=("O7",), devices=BOTH, traffic=_unfused, returns=True)
def eager(ctx: Context) -> Launch:
    """Two kernels, and a tensor between them."""
    function = _chain(ctx.s.P / 100)
    return lambda t: function(t.x, t.addend)


@OP.variant("compile", "torch.compile of the same", devices=BOTH, returns=True)
def compile_(ctx: Context) -> Launch:
    """Inductor's fused kernel, with its own random numbers."""
    function = compiled(_chain(ctx.s.P / 100))
    return lambda t: function(t.x, t.addend)


@OP.variant("fused_bytes", "one kernel, four elements a thread, byte mask", rows=("O7",))
def fused_bytes(ctx: Context) -> Launch:
    """The text's fusion."""
    return _launch(ctx, "dropout_add_bytes", WIDE)


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.mask, ctx.s.N)}


@OP.variant(
    "fused_bitmask", "the same with a bit an element, eight lanes a word", rows=("O7",), outputs=_BITS, decode=_decode
)
def fused_bitmask(ctx: Context) -> Launch:
    """The fusion with the mask of row D3."""
    return _launch(ctx, "dropout_add_bitmask", WIDE)


@OP.variant(
    "tuned", "eight elements a draw, 16-byte packs, a mask byte a lane", rows=("O7",), outputs=_BITS, decode=_decode
)
def tuned(ctx: Context) -> Launch:
    """Loads under way while the numbers are drawn; see dropout_add.cu."""
    return _launch(ctx, "dropout_add_tuned", NARROW)


def _chain(probability: float) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """What a user writes; gives y and the mask."""
    import torch

    def dropout_add(x: torch.Tensor, addend: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept, mask = torch.native_dropout(x, probability, True)
        return kept + addend, mask

    return dropout_add


def _launch(ctx: Context, entry: str, bits: int) -> Launch:
    """The kernel `entry`, which draws numbers of `bits` bits."""
    kernel = ctx.kernel("dropout_add.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    random = arguments(ctx, bits)
    threads, whole = split(ctx.s.N, bits)

    def launch(t: Tensors) -> None:
        packs = whole if aligned(t.x, t.addend, t.y, t.mask) else 0
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(packs)
        kernel(blocks(threads), BLOCK, t.x, t.addend, t.call, t.y, t.mask, *sizes, *random)

    return launch
