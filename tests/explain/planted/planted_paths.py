"""y = 0.99^k (x - 1) + 1: k steps of v = 0.99 v + 0.01 from x on. Each variant but the last has one fault."""

from __future__ import annotations

import ctypes
from functools import partial

from harness.ops import Context, Launch, Op, Tensor

_BLOCK = 256

OP = Op(
    "planted_paths",
    "k steps of a recurrence, k of each element its own",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)), Tensor("k", ("N",), dtype="uint8")),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    # A step rounds, and 255 of them follow each other; and x may be near to 1.
    tolerance={"float32": (1e-4, 1e-4)},
    reference=lambda _ctx, t: {"y": 0.99 ** t.k.double() * (t.x.double() - 1) + 1},
)


def _prepare(ctx: Context, name: str) -> Launch:
    kernel, n = ctx.kernel("planted_paths.cu", name), ctx.s.N
    return lambda t: kernel(-(-n // _BLOCK), _BLOCK, t.x, t.k, t.y, ctypes.c_longlong(n))


for _name, _summary in {
    "divergent": "a loop of k steps: the lanes of a warp wait for the longest",
    "barriers": "30 barriers, which it doesn't need",
    "doubles": "constants of C++, which are doubles",
    "closed": "the closed form in float32",
}.items():
    OP.variant(_name, _summary)(partial(_prepare, name=_name))
