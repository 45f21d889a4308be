"""Dropout, y = x * scale where an element is kept, else 0, and the mask of what was kept: rows D1 to D3.

Twin of dropout.cu. A dropped infinity or NaN is 0 here; torch multiplies it by 0, which gives NaN. A mask depends on
the seed, the number of the call and an element's index alone: two layers with the same seed and the same number of the
call draw the same mask. torch has one generator for all layers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

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
from harness.model import Work
from harness.ops import Compile, Context, Expected, Extremes, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

_A_CALL = 4  # elements of a thread of `naive`, which are the words of a Philox call

_Y = Tensor("y", ("N",))
_BYTES = (_Y, Tensor("mask", ("N",), "bool", kept=True))


def check(ctx: Context, t: Tensors) -> Iterator[Expected | str]:
    """The mask has no bit or byte that it shouldn't have and keeps the right share, and y is what it asks for."""
    yield from _stray(t)
    yield from expected_share(ctx, t.mask)
    yield from expected_y(ctx, t, t.before.x.float())


def _stray(t: Tensors) -> Iterator[str]:
    """A complaint about the mask's form: its bits if it has any, else its bytes."""
    import torch

    if not hasattr(t, "bits"):
        if bool((t.mask.view(torch.uint8) > 1).any()):
            yield "mask: has bytes other than 0 and 1"
        return
    past_the_end = unpack(t.bits[-1:], 32)[(t.mask.numel() - 1) % 32 + 1 :]
    if bool(past_the_end.any()):
        yield "bits: some are set past the last element"


def work(s: Symbols, size: int) -> Work:
    """The mask is a bit an element, whatever a variant makes of it."""
    return Work(read=s["N"] * size + CALL.bytes(s, "float32"), written=s["N"] * size + bytes_of_bits(s["N"]))


OP = Op(
    "dropout",
    "y = x / (1 - p) where an element is kept, else 0, and the mask of what is kept",
    symbols={"N": "elements"},
    choices=DROPPED,
    inputs=(Tensor("x", ("N",)), CALL),
    outputs=_BYTES,
    check=check,
    extremes=Extremes(
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**120),
        why="the kept numbers grow by 1 / (1 - p), in float32",
    ),
    work=work,
)


@OP.variant("eager", "torch.native_dropout, byte mask", role="baseline", devices=ANY, outputs=_BYTES, returns=True)
def eager(ctx: Context) -> Launch:
    """The function is the one that torch.nn.functional.dropout calls in training."""
    import torch

    probability = ctx.s.p
    return lambda t: torch.native_dropout(t.x, probability, True)


@compiled_variants(OP, "torch.compile of the same", outputs=_BYTES, unsupported=input_itself(0.0, "x"))
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel, with its own random numbers."""
    import torch

    probability = ctx.s.p
    function = compiled(lambda x: torch.native_dropout(x, probability, True))
    return lambda t: function(t.x)


@OP.variant(
    "naive",
    "one random number, one element and one mask byte at a time, four of them a thread",
    role="published",
    rows=("D1",),
    outputs=_BYTES,
)
def naive(ctx: Context) -> Launch:
    """The text starts here. All four words of a Philox call are used, but each access is of one element."""
    kernel = ctx.kernel("dropout.cu", "dropout_naive", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n, random = blocks(ctx.s.N, _A_CALL * BLOCK), ctypes.c_int64(ctx.s.N), arguments(ctx, WIDE)
    return lambda t: kernel(grid, BLOCK, t.x, t.call, t.y, t.mask, n, *random)


@OP.variant(
    "vectorized",
    "the four elements of a Philox call by one load and one store; byte mask",
    role="published",
    rows=("D2",),
    outputs=_BYTES,
)
def vectorized(ctx: Context) -> Launch:
    """The text's second step."""
    return _launch(ctx, "dropout_vectorized", WIDE, "mask")


def _decode(ctx: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": unpack(t.bits, ctx.s.N)}


# Not named as the byte mask is, so that the check sees the words too.
_BITS: dict[str, Any] = {"outputs": (_Y, Tensor("bits", (WORDS,), "int32", kept=True)), "decode": _decode}


@OP.variant(
    "bitmask_match",
    "a bit an element, eight lanes' combined by match and reduce",
    role="published",
    rows=("D3",),
    **_BITS,
)
def bitmask_match(ctx: Context) -> Launch:
    """The text's bit mask for GPUs from sm_80 on."""
    return _launch(ctx, "dropout_bitmask_match", WIDE, "bits")


@OP.variant(
    "bitmask_shuffle",
    "a bit an element, eight lanes' combined by shuffles",
    role="published",
    rows=("D3",),
    **_BITS,
)
def bitmask_shuffle(ctx: Context) -> Launch:
    """The text's bit mask for older GPUs."""
    return _launch(ctx, "dropout_bitmask_shuffle", WIDE, "bits")


@OP.variant("tuned", "eight numbers a Philox call, 16-byte packs, a mask byte a lane", rows=("D3",), **_BITS)
def tuned(ctx: Context) -> Launch:
    """Loads are under way while the numbers are drawn; see dropout.cu."""
    return _launch(ctx, "dropout_tuned", NARROW, "bits")


def _launch(ctx: Context, entry: str, bits: int, mask: str) -> Launch:
    """A launch of the kernel `entry`, which draws numbers of `bits` bits and writes the tensor named `mask`."""
    kernel = ctx.kernel("dropout.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    random = arguments(ctx, bits)
    threads, whole = split(ctx.s.N, bits)

    def launch(t: Tensors) -> None:
        kept = getattr(t, mask)
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(whole if aligned(t.x, t.y, kept) else 0)
        kernel(blocks(threads), BLOCK, t.x, t.call, t.y, kept, *sizes, *random)

    return launch
