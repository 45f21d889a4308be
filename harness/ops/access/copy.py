"""Copy: the plainest kernel there is, and the yardstick of the others. Twin of copy.cu."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.cuda import memcpy
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.ops._baselines import compiled


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The source itself: a copy has no rounding."""
    return {"y": t.x}


OP = Op(
    "copy",
    "y = x, N elements",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=reference,
    tolerance={"float32": (0, 0), "float16": (0, 0), "bfloat16": (0, 0)},
)


# Inside a CUDA graph a copy of a gigabyte is slower than outside (the ceilings in reports/h200/peak show both), so the
# two copies that end in cudaMemcpyAsync are timed as users call them.
@OP.variant("eager", "torch's copy_, which is a cudaMemcpyAsync", rows=("O1",), devices=("cuda", "cpu"), capture=False)
def eager(_: Context) -> Launch:
    """`y.copy_(x)` into the given output."""

    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)

    return launch


@OP.variant("compile", "torch.compile of a clone", devices=("cuda", "cpu"), returns=True)
def compile_(_: Context) -> Launch:
    """A clone, since a compiled copy_ is a call to the same library."""
    clone = compiled(lambda x: x.clone())
    return lambda t: (clone(t.x),)


@OP.variant("memcpy", "the driver's device-to-device copy, as bandwidthTest calls it", rows=("O1",), capture=False)
def memcpy_(_: Context) -> Launch:
    """CuMemcpyDtoDAsync on torch's stream."""
    return lambda t: memcpy(t.y, t.x)


@OP.variant("stream", "one 16-byte pack a thread", rows=("O1",))
def stream(ctx: Context) -> Launch:
    """Many blocks with one load in flight a thread."""
    return _streamed(ctx, unroll=1)


@OP.variant("stream2", "two 16-byte packs a thread", rows=("O1",))
def stream2(ctx: Context) -> Launch:
    """Half as many blocks, two loads in flight a thread."""
    return _streamed(ctx, unroll=2)


@OP.variant("stream4", "four 16-byte packs a thread", rows=("O1",))
def stream4(ctx: Context) -> Launch:
    """A quarter of the blocks, four loads in flight a thread."""
    return _streamed(ctx, unroll=4)


@OP.variant("evict_first", "one pack a thread, lines marked to leave the L2 first", rows=("O1",))
def evict_first(ctx: Context) -> Launch:
    """The same as `stream` with other cache hints."""
    return _streamed(ctx, unroll=1, hinted=True)


def _streamed(ctx: Context, unroll: int, hinted: bool = False) -> Launch:
    from harness.cuda.streams import BLOCK, PACK_BYTES, StreamKernel, macros

    copy_bytes = ctx.kernel("copy.cu", "copy_bytes", macros(1, 1, unroll, hinted))
    streaming = StreamKernel(1, 1, unroll, hinted)
    ctx.kernels.append(streaming.kernel.facts)

    def launch(t: Tensors) -> None:
        size = t.x.numel() * t.x.element_size()
        aligned = (t.x.data_ptr() | t.y.data_ptr()) % PACK_BYTES == 0
        whole = size - size % PACK_BYTES if aligned else 0
        if whole:
            streaming([t.x], [t.y])
        copy_bytes(-(-(size - whole) // BLOCK), BLOCK, t.x, t.y, ctypes.c_int64(whole), ctypes.c_int64(size))

    return launch
