"""A copy with a known number of bytes in flight: row O17. Twin of bytes_in_flight.cu.

At any time T * V * U bytes are being read on each multiprocessor: these are in flight.
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.access import copy
from harness.collection.ops.access._resident import grid_and_block, obstacles
from harness.collection.ops.elementwise import BLOCK, BOTH, blocks
from harness.model import Case
from harness.ops import FLOATS, ITEMSIZE, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

VECTOR = {4: "unsigned", 8: "uint2", 16: "uint4"}
_MOST_A_THREAD = 128  # bytes: half of the 64 registers that a thread of a full block can have
_MOST_IN_FLIGHT = 2**17  # bytes: half of a multiprocessor's registers, where they arrive


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The result is the source itself: a copy has no rounding."""
    return {"y": t.x}


OP = Op(
    "bytes_in_flight",
    "y = x by a resident grid, N elements",
    symbols={
        "N": "elements",
        "T": "threads a multiprocessor",
        "V": "bytes of a load",
        "U": "loads in flight a thread",
    },
    defaults={"T": "2048", "V": "16", "U": "1"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


def limits(case: Case) -> str | None:
    """The reason why a shape's threads or loads can't all be resident; None if they can."""
    threads, vector, loads = (case.symbols[symbol] for symbol in "TVU")
    reasons = {
        f"V is {vector}; a load is of 4, 8 or 16 bytes": vector not in VECTOR,
        **obstacles(threads),
        "the registers of a thread don't hold V * U bytes": vector * loads > _MOST_A_THREAD,
        "the registers of a multiprocessor don't hold T * V * U bytes": threads * vector * loads > _MOST_IN_FLIGHT,
        "the kernel's index has 32 bits": case.symbols["N"] * ITEMSIZE[case.dtype] >= 2**31 * vector,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


@OP.variant("eager", "torch's copy_; T, V and U don't concern it", role="baseline", devices=BOTH, timer="launch")
def eager(ctx: Context) -> Launch:
    """The variant of the op `copy`."""
    launch: Launch = copy.eager(ctx)
    return launch


@compiled_variants(OP, "torch.compile of a clone; T, V and U don't concern it")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """The variant of the op `copy`."""
    launch: Launch = copy.compile_(ctx, compiled)
    return launch


@OP.variant(
    "grid_stride",
    "T threads a multiprocessor loop over U loads of V bytes",
    role="published",
    rows=("O17",),
    unsupported=limits,
)
def grid_stride(ctx: Context) -> Launch:
    """The whole grid is resident: a block for each multiprocessor, or two where T needs two."""
    threads, vector = ctx.s.T, ctx.s.V
    kernel = ctx.kernel("bytes_in_flight.cu", "grid_stride", {"VECTOR": VECTOR[vector], "IN_FLIGHT": ctx.s.U})
    rest = ctx.kernel("copy.cu", "copy_bytes")
    grid, block = grid_and_block(threads)

    def launch(t: Tensors) -> None:
        size = t.x.numel() * t.x.element_size()
        aligned = (t.x.data_ptr() | t.y.data_ptr()) % vector == 0
        vectors = size // vector if aligned else 0
        kernel(grid, block, t.x, t.y, ctypes.c_uint32(vectors), ctypes.c_uint32(grid * block))
        begin = vectors * vector
        rest(blocks(size - begin), BLOCK, t.x, t.y, ctypes.c_int64(begin), ctypes.c_int64(size))

    return launch


@OP.variant("tuned", "one pack of 16 bytes a thread, many blocks; T, V and U don't concern it", rows=("O17",))
def tuned(ctx: Context) -> Launch:
    """The plain stream: no loop over the data is known to be faster."""
    launch: Launch = copy.stream(ctx)
    return launch
