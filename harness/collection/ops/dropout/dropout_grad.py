"""The gradient of dropout, dx = dy * scale where an element was kept, else 0: row D4. Twin of dropout_grad.cu.

The mask is the one that dropout's tuned variant draws in a call with the number REPLAYED, so that `replay` can do
without it. The scale is exactly the scale of the forward that a variant belongs to: `tuned` and `replay` to dropout's
tuned variant, `bytes` and `bitmask` to the variants with 24 bits a number, and torch's to torch's.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from harness.collection.ops.bits import WORDS, pack
from harness.collection.ops.dropout._dropout import CALL, DROPPED, NARROW, Keep, arguments, scale, seed, split
from harness.collection.ops.dropout._philox import GROUP, draws
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks, widened
from harness.model import Work
from harness.ops import ITEMSIZE, Compile, Context, Extremes, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

REPLAYED = 3
_CHUNK = 2**24  # numbers drawn at a time: as int64 and in several copies they take half a gigabyte

_DY, _DX = Tensor("dy", ("N",)), Tensor("dx", ("N",))
_BYTES = (_DY, Tensor("mask", ("N",), "bool"))


def make(ctx: Context) -> dict[str, Any]:
    """Normal random gradients without zeros, and the mask."""
    import torch

    dy = torch.randn(ctx.s.N, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype)
    return {"dy": dy.masked_fill_(dy == 0, 1), "mask": _drawn(ctx)}


def _drawn(ctx: Context) -> torch.Tensor:
    """The mask that the narrow stream of numbers gives."""
    import torch

    mask = torch.empty(ctx.s.N, device=ctx.device, dtype=torch.bool)
    for start in range(0, ctx.s.N, _CHUNK):
        part = mask[start : start + _CHUNK]
        groups = torch.arange(start // GROUP[NARROW], -(-(start + part.numel()) // GROUP[NARROW]), device=ctx.device)
        numbers = draws(seed(ctx), REPLAYED, groups, NARROW).view(-1)[: part.numel()]
        part.copy_(numbers < Keep(ctx.s.p, NARROW).threshold)
    return mask


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The gradient in higher precision, with the scale of the variant."""
    import torch

    (dy,) = widened(t.dy)
    return {"dx": torch.where(t.mask, dy * scale(ctx), 0)}


def work(s: Symbols, size: int) -> Work:
    """The mask need not be read: the number of the forward's call is enough to draw it again."""
    return Work(read=s["N"] * size + CALL.bytes(s, "float32"), written=s["N"] * size)


OP = Op(
    "dropout_grad",
    "dx = dy / (1 - p) where an element was kept, else 0; scaled by the same number as the forward",
    symbols={"N": "elements"},
    choices=DROPPED,
    inputs=_BYTES,
    outputs=(_DX,),
    reference=reference,
    make=make,
    extremes=Extremes(),
    work=work,
)

_TORCH: dict[str, Any] = {"role": "baseline", "devices": ANY, "inputs": _BYTES, "returns": True}


@OP.variant("eager", "torch's native_dropout_backward, byte mask", **_TORCH)
def eager(ctx: Context) -> Launch:
    """Autograd calls this after torch.nn.functional.dropout."""
    import torch

    factor = scale(ctx)
    return lambda t: (torch.ops.aten.native_dropout_backward(t.dy, t.mask, factor),)


@compiled_variants(OP, "torch.compile of the same", **_TORCH)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel."""
    import torch

    factor = scale(ctx)
    function = compiled(lambda dy, mask: torch.ops.aten.native_dropout_backward(dy, mask, factor))
    return lambda t: (function(t.dy, t.mask),)


@OP.variant("bytes", "four elements and four mask bytes a thread", inputs=_BYTES)
def bytes_(ctx: Context) -> Launch:
    """The kernel that the bit mask is compared with."""
    return _launch(ctx, "dropout_grad_bytes", 4, "mask")


def _encode(_: Context, t: Tensors) -> dict[str, Any]:
    return {"bits": pack(t.mask)}


_BITS: dict[str, Any] = {"inputs": (_DY, Tensor("bits", (WORDS,), "int32")), "encode": _encode}


@OP.variant("bitmask", "four elements a thread, four bits of a mask word", role="published", rows=("D4",), **_BITS)
def bitmask(ctx: Context) -> Launch:
    """The text's backward."""
    return _launch(ctx, "dropout_grad_bitmask", 4, "bits")


@OP.variant("tuned", "16-byte packs and their bits, a byte's or half a byte's", rows=("D4",), **_BITS)
def tuned(ctx: Context) -> Launch:
    """It reads bits as all variants of dropout write them, with accesses as wide as a copy's."""
    return _launch(ctx, "dropout_grad_tuned", PACK_BYTES // ITEMSIZE[ctx.case.dtype], "bits")


def _launch(ctx: Context, entry: str, per_thread: int, mask: str) -> Launch:
    """A launch of the kernel `entry`, whose threads take `per_thread` elements each. It reads the tensor `mask`."""
    kernel = ctx.kernel("dropout_grad.cu", entry, {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    factor = ctypes.c_float(scale(ctx))
    grid, whole = blocks(-(-ctx.s.N // per_thread)), ctx.s.N // per_thread

    def launch(t: Tensors) -> None:
        kept = getattr(t, mask)
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(whole if aligned(t.dy, kept, t.dx) else 0)
        kernel(grid, BLOCK, t.dy, kept, t.dx, *sizes, factor)

    return launch


def _number_of_call(ctx: Context, _: Tensors) -> dict[str, Any]:
    import torch

    return {"call": torch.tensor([REPLAYED], device=ctx.device)}


@OP.variant(
    "replay", "no mask in memory: draws the forward's numbers again", inputs=(_DY, CALL), encode=_number_of_call
)
def replay(ctx: Context) -> Launch:
    """It computes the mask, and reads none."""
    kernel = ctx.kernel("dropout_grad.cu", "dropout_grad_replay", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    random = arguments(ctx, NARROW)
    threads, whole = split(ctx.s.N, NARROW)

    def launch(t: Tensors) -> None:
        sizes = ctypes.c_int64(ctx.s.N), ctypes.c_int64(whole if aligned(t.dy, t.dx) else 0)
        kernel(blocks(threads), BLOCK, t.dy, t.call, t.dx, *sizes, *random)

    return launch
