"""An op whose kernels go wrong on the device."""

from __future__ import annotations

import ctypes

from harness.ops import Context, Launch, Op, Tensor

_BLOCK = 256

OP = Op(
    "cuda_fault",
    "copies, unless something goes wrong on the device",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=lambda _ctx, t: {"y": t.x.double()},
)


@OP.variant("fine", "nothing goes wrong")
def fine(ctx: Context) -> Launch:
    kernel = ctx.kernel("cuda_faults.cu", "copy")
    n = ctx.s.N
    return lambda t: kernel(-(-n // _BLOCK), _BLOCK, t.x, t.y, ctypes.c_longlong(n))


@OP.variant("out_of_bounds", "writes 4 TiB past its output: an illegal address, which breaks the context")
def out_of_bounds(ctx: Context) -> Launch:
    kernel = ctx.kernel("cuda_faults.cu", "out_of_bounds")
    return lambda t: kernel(1, 1, t.y)


@OP.variant("endless", "a kernel that never ends")
def endless(ctx: Context) -> Launch:
    kernel = ctx.kernel("cuda_faults.cu", "endless")
    return lambda t: kernel(1, 1, t.y)


@OP.variant("greedy", "allocates more than the device has", returns=True)
def greedy(ctx: Context) -> Launch:
    import torch

    return lambda _t: torch.empty(2**50, dtype=torch.uint8, device=ctx.device)
