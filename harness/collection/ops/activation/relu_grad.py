"""The backward of ReLU, dx = dy where y > 0 else 0: row O9. Twin of relu_grad.cu.

Eager and the variants named from_y read y; all other variants read the bits that relu_mask writes. PyTorch's drops dy
where y <= 0, so it lets dy through where y is NaN; ours give 0 there.
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.activation.relu_mask import GROUP, NATURAL, STRIDED, pack_strided
from harness.collection.ops.bits import bytes_of_bits, pack
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Work
from harness.ops import (
    FLOATS,
    ITEMSIZE,
    Compile,
    Context,
    Extremes,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled_variants,
)


def make(ctx: Context) -> dict[str, Any]:
    """A gradient, and y as a ReLU leaves it: half of it zeros."""
    import torch

    dy, x = (torch.randn(ctx.s.N, generator=ctx.generator, device=ctx.device, dtype=ctx.dtype) for _ in range(2))
    return {"dy": dy, "y": x.relu_()}


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """A selection has no rounding, so the case's precision is exact."""
    return {"dx": t.dy.where(t.y > 0, 0)}


def work(s: Symbols, size: int) -> Work:
    """The sign of y is a bit an element, whatever a variant reads of it."""
    return Work(read=s["N"] * size + bytes_of_bits(s["N"]), written=s["N"] * size)


_DY = Tensor("dy", ("N",))
_WHOLE_Y = (_DY, Tensor("y", ("N",)))
OP = Op(
    "relu_grad",
    "dx = dy where y > 0 else 0",
    symbols={"N": "elements"},
    inputs=_WHOLE_Y,
    outputs=(Tensor("dx", ("N",)),),
    make=make,
    extremes=Extremes(exempt={"y": "it is what a ReLU leaves, where torch and we differ in NaN"}),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
    work=work,
)

_TORCH: dict[str, Any] = {"role": "baseline", "devices": ANY, "inputs": _WHOLE_Y, "returns": True}


@OP.variant("eager", "what autograd calls, threshold_backward(dy, y, 0)", rows=("O9",), **_TORCH)
def eager(_: Context) -> Launch:
    """It reads y to find the sign."""
    import torch

    return lambda t: (torch.ops.aten.threshold_backward(t.dy, t.y, 0),)


@compiled_variants(OP, "torch.compile of the same", **_TORCH)
def compile_(_: Context, compiled: Compile) -> Launch:
    """It moves the same bytes as eager."""
    import torch

    function = compiled(lambda dy, y: torch.ops.aten.threshold_backward(dy, y, 0))
    return lambda t: (function(t.dy, t.y),)


def _encode(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": pack(t.y > 0)}


def _encode_strided(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": pack_strided(t.y > 0)}


_BITS: dict[str, Any] = {"inputs": (_DY, NATURAL), "encode": _encode}


@OP.variant("from_y", "one element of dy and of y a thread", role="published", rows=("O9",), inputs=_WHOLE_Y)
def from_y(ctx: Context) -> Launch:
    """The text before: `bitset` is the same kernel with a bit in place of y."""
    kernel = ctx.kernel("relu_grad.cu", "relu_grad_from_y", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n = blocks(ctx.s.N), ctypes.c_int64(ctx.s.N)
    return lambda t: kernel(grid, BLOCK, t.dy, t.y, t.dx, n)


@OP.variant("from_y_packed", "one pack of dy and one of y a thread", inputs=_WHOLE_Y)
def from_y_packed(ctx: Context) -> Launch:
    """`tuned` is the same kernel with bits in place of y."""
    kernel = ctx.kernel("relu_grad.cu", "relu_grad_from_y_packed", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    packs = -(-ctx.s.N * ITEMSIZE[ctx.case.dtype] // PACK_BYTES)
    grid, n = blocks(packs), ctypes.c_int64(ctx.s.N)
    return lambda t: kernel(grid, BLOCK, t.dy, t.y, t.dx, n, ctypes.c_int32(aligned(t.dy, t.y, t.dx)))


@OP.variant("bitset", "one element and its bit a thread", role="published", rows=("O9",), **_BITS)
def bitset(ctx: Context) -> Launch:
    """The text after, in its plainest form."""
    kernel = ctx.kernel("relu_grad.cu", "relu_grad_bitset", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    grid, n = blocks(ctx.s.N), ctypes.c_int64(ctx.s.N)
    return lambda t: kernel(grid, BLOCK, t.dy, t.mask, t.dx, n)


@OP.variant(
    "bitset_strided",
    "a byte of relu_mask/strided and its 8 elements a thread",
    role="published",
    rows=("O9",),
    inputs=(_DY, STRIDED),
    encode=_encode_strided,
)
def bitset_strided(ctx: Context) -> Launch:
    """It reads the permuted order that `strided` of relu_mask writes."""
    kernel = ctx.kernel("relu_grad.cu", "relu_grad_bitset_strided", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    count = -(-ctx.s.N // GROUP)
    grid, n, units = blocks(count), ctypes.c_int64(ctx.s.N), ctypes.c_int64(count)
    return lambda t: kernel(grid, BLOCK, t.dy, t.mask, t.dx, n, units)


@OP.variant("tuned", "packs of 16 bytes and their bits, a byte's or half a byte's", rows=("O9",), **_BITS)
def tuned(ctx: Context) -> Launch:
    """The bits are in natural order, and accesses as wide as a copy's."""
    kernel = ctx.kernel("relu_grad.cu", "relu_grad_tuned", {"SCALAR": CUDA_TYPE[ctx.case.dtype]})
    packs = -(-ctx.s.N * ITEMSIZE[ctx.case.dtype] // PACK_BYTES)
    grid, n = blocks(packs), ctypes.c_int64(ctx.s.N)
    return lambda t: kernel(grid, BLOCK, t.dy, t.mask, t.dx, n, ctypes.c_int32(aligned(t.dy, t.dx)))
