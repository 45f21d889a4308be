"""The cyclic shift and the partition of images into windows: row S5. Twin of window_partition.cu.

backward: x is the gradient of the windows, y that of the images. It is the map of window_reverse.
"""

from __future__ import annotations

from typing import Any

from harness.collection.ops.elementwise import BOTH
from harness.collection.ops.layouts import _windows as windows
from harness.ops import FLOATS, Context, Launch, Op, Tensors
from harness.ops.baselines import Compile, compiled_variants


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """A move has no rounding, so the case's precision is exact."""
    return {"y": windows.moved(ctx, t.x, forward=True)}


OP = Op(
    "window_partition",
    "images (B, H, W, C), rolled and cut into windows",
    symbols=windows.SYMBOLS,
    defaults=windows.DEFAULTS,
    choices={"direction": windows.DIRECTION},
    **windows.tensors(forward=True),
    reference=reference,
    tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
)


@OP.variant(
    "eager",
    "roll, view, permute and contiguous; backward: what autograd runs",
    role="baseline",
    rows=("S5",),
    devices=BOTH,
    returns=True,
    traffic=windows.eager_traffic,
)
def eager(ctx: Context) -> Launch:
    """Swin Transformer's own code, which skips a shift of 0."""
    return windows.by_torch(ctx, forward=True)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel of it, in which all sizes are constants."""
    return windows.by_torch(ctx, forward=True, compiled=compiled)


@OP.variant("index_map", "one element a thread, with divisions and remainders", role="published", rows=("S5",))
def index_map(ctx: Context) -> Launch:
    """The text's kernel."""
    return windows.index_map(ctx, forward=True)


@OP.variant("tuned", "16 or 8 bytes an access at any sizes, multiplications in place of divisions", rows=("S5",))
def tuned(ctx: Context) -> Launch:
    """The kernel depends on the sizes: window_partition.cu tells how."""
    return windows.tuned(ctx, forward=True)
