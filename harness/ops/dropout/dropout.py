"""Dropout, y = x * scale where an element is kept, else 0, and the mask of what was kept: rows D1 to D3.

Twin of dropout.cu. A dropped infinity or NaN is 0 here; torch multiplies it by 0, which gives NaN.
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ops._baselines import compiled
from harness.ops._bits import WORDS, unpack
from harness.ops._elementwise import BLOCK, BOTH, CUDA_TYPE, aligned, blocks
from harness.ops.dropout._dropout import (
    CALL,
    NARROW,
    PERCENT,
    WIDE,
    Keep,
    arguments,
    density_complaint,
    split,
    value_complaint,
)

_Y = Tensor("y", ("N",))


def check(ctx: Context, t: Tensors) -> str | None:
    """The mask has no bit or byte that it shouldn't have and keeps the right share, and y is what it asks for."""
    import torch

    want = torch.where(t.mask, t.before.x.float() * Keep(ctx.s.P, WIDE).scale, 0)
    return _stray(t) or density_complaint(ctx, t.mask) or value_complaint(ctx, "y", t.y, want)


def _stray(t: Tensors) -> str | None:
    """What is wrong with the mask's form, in bits if there are any, else in bytes."""
    import torch

    if not hasattr(t, "bits"):
        return "mask: has bytes other than 0 and 1" if bool((t.mask.view(torch.uint8) > 1).any()) else None
    past_the_end = unpack(t.bits[-1:], 32)[(t.mask.numel() - 1) % 32 + 1 :]
    return "bits: some are set past the last element" if bool(past_the_end.any()) else None


OP = Op(
    "dropout",
    "y = x / (1 - p) where an element is kept, else 0, and the mask of what is kept",
    symbols={"N": "elements", **PERCENT},
    inputs=(Tensor("x", ("N",)), CALL),
    outputs=(_Y, Tensor("mask", ("N",), "bool")),
    defaults={"P": "10"},
    check=check,
    flops="N",
)


@OP.variant("eager", "torch.native_dropout, byte mask", devices=BOTH, returns=True)
def eager(ctx: Context) -> Launch:
    """What torch.nn.functional.dropout calls in training."""
    import torch

    probability = ctx.s.P / 100
    return lambda t: torch.native_dropout(t.x, probability, True)


@OP.variant("compile", "torch.compile of the same", devices=BOTH, returns=True)
def compile_(ctx: Context) -> Launch:
    """Inductor's kernel, with its own random numbers."""
    import torch

    probability = ctx.s.P / 100
    function = compiled(lambda x: torch.native_dropout(x, probability, True))
    return lambda t: function(t.x)


@OP.variant("naive", "one random number, one element and one mask byte a thread", rows=("D1",))
def naive(ctx: Context) -> Launch:
    """The text's starting point: a whole Philox call for each element."""
    kernel = ctx.kernel("dropout.cu", "dropout_naive", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n, random = blocks(ctx.s.N), ctypes.c_int64(ctx.s.N), arguments(ctx, WIDE)
    return lambda t: kernel(grid, BLOCK, t.x, t.call, t.y, t.mask, n, *random)


@OP.variant("vectorized", "four numbers a Philox call, so four elements a thread; byte mask", rows=("D2",))
def vectorized(ctx: Context) -> Launch:
    """The text's second step."""
    return _launch(ctx, "dropout_vectorized", WIDE, "mask")


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.bits, ctx.s.N)}


# Not named as the byte mask is, so that the check sees the words too.
_BITS: dict[str, Any] = {"outputs": (_Y, Tensor("bits", (WORDS,), "int32")), "decode": _decode}


@OP.variant("bitmask_match", "a bit an element, eight lanes' combined by match and reduce", rows=("D3",), **_BITS)
def bitmask_match(ctx: Context) -> Launch:
    """The text's bitmask, from sm_80 on."""
    return _launch(ctx, "dropout_bitmask_match", WIDE, "bits")


@OP.variant("bitmask_shuffle", "a bit an element, eight lanes' combined by shuffles", rows=("D3",), **_BITS)
def bitmask_shuffle(ctx: Context) -> Launch:
    """The text's bitmask for older GPUs."""
    return _launch(ctx, "dropout_bitmask_shuffle", WIDE, "bits")


@OP.variant("tuned", "eight numbers a Philox call, 16-byte packs, a mask byte a lane", rows=("D3",), **_BITS)
def tuned(ctx: Context) -> Launch:
    """Loads under way while the numbers are drawn; see dropout.cu."""
    return _launch(ctx, "dropout_tuned", NARROW, "bits")


def _launch(ctx: Context, entry: str, bits: int, mask: str) -> Launch:
    """The kernel `entry`, which draws numbers of `bits` bits and writes the tensor named `mask`."""
    kernel = ctx.kernel("dropout.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    random = arguments(ctx, bits)
    threads, whole = split(ctx.s.N, bits)

    def launch(t: Tensors) -> None:
        kept = getattr(t, mask)
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(whole if aligned(t.x, t.y, kept) else 0)
        kernel(blocks(threads), BLOCK, t.x, t.call, t.y, kept, *sizes, *random)

    return launch
