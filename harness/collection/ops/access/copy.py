"""Copy: the simplest kernel, which all other kernels are compared with. Twin of copy.cu."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.elementwise import BOTH
from harness.cuda import memcpy
from harness.ops import FLOATS, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The result is the source itself: a copy has no rounding."""
    return {"y": t.x}


OP = Op(
    "copy",
    "y = x, N elements",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)

# The library's copies. Both end in cudaMemcpyAsync. Inside a CUDA graph that copies a gigabyte more slowly than outside
# (the streams in reports/h200/peak show both), so they are timed as users call them.
_CONTROL: dict[str, Any] = {"role": "control", "rows": ("O1",), "timer": "launch"}


@OP.variant("eager", "torch's copy_, which is a cudaMemcpyAsync", devices=BOTH, **_CONTROL)
def eager(_: Context) -> Launch:
    """`y.copy_(x)` writes into the given output."""

    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)

    return launch


@compiled_variants(OP, "torch.compile of a clone")
def compile_(_: Context, compiled: Compile) -> Launch:
    """It is a clone, since a compiled copy_ is a call to the same library."""
    clone = compiled(lambda x: x.clone())
    return lambda t: (clone(t.x),)


@OP.variant("memcpy", "the driver's device-to-device copy, as bandwidthTest calls it", **_CONTROL)
def memcpy_(_: Context) -> Launch:
    """The driver copies on torch's stream."""
    return lambda t: memcpy(t.y, t.x)


@OP.variant("stream", "one 16-byte pack a thread", rows=("O1",))
def stream(ctx: Context) -> Launch:
    """There are many blocks, and a thread has one load in flight."""
    return _streamed(ctx, unroll=1)


@OP.variant("stream2", "two 16-byte packs a thread", rows=("O1",))
def stream2(ctx: Context) -> Launch:
    """Half the blocks of `single`; a thread has two loads in flight."""
    return _streamed(ctx, unroll=2)


@OP.variant("stream4", "four 16-byte packs a thread", rows=("O1",))
def stream4(ctx: Context) -> Launch:
    """There are a quarter of the blocks, and a thread has four loads in flight."""
    return _streamed(ctx, unroll=4)


@OP.variant("evict_first", "one pack a thread, lines marked to leave the L2 first", rows=("O1",))
def evict_first(ctx: Context) -> Launch:
    """`stream` with other cache hints."""
    return _streamed(ctx, unroll=1, hinted=True)


def _streamed(ctx: Context, unroll: int, hinted: bool = False) -> Launch:
    from harness.cuda.streams import BLOCK, PACK_BYTES, StreamKernel

    copy_bytes = ctx.kernel("copy.cu", "copy_bytes")
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
