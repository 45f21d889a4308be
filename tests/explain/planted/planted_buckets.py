"""How many elements have each value of their lowest six bits."""

from __future__ import annotations

import ctypes
from functools import partial

import torch

from harness.ops import Context, Launch, Op, Tensor, Tensors

_BUCKETS, _BLOCK = 64, 256

OP = Op(
    "planted_buckets",
    "counts of 64 values",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",), dtype="uint8"),),
    outputs=(Tensor("y", (_BUCKETS,), dtype="int32"),),
    dtypes=("float32",),
    reference=lambda _ctx, t: {"y": torch.bincount((t.x % _BUCKETS).flatten().long(), minlength=_BUCKETS)},
)


def _prepare(ctx: Context, name: str) -> Launch:
    kernel, n = ctx.kernel("planted_buckets.cu", name), ctx.s.N
    blocks = -(-n // (32 * _BLOCK))

    def launch(t: Tensors) -> None:
        t.y.zero_()
        kernel(blocks, _BLOCK, t.x, t.y, ctypes.c_longlong(n))

    return launch


for _name, _summary in {
    "atomics": "each element changes a word of global memory",
    "own_counts": "a block counts in shared memory first",
}.items():
    OP.variant(_name, _summary)(partial(_prepare, name=_name))
