"""The two ops on windows: each is the way back of the other, so one function declares both."""

from __future__ import annotations

from typing import Any

from harness.collection.ops.elementwise import ANY
from harness.collection.ops.layouts import _windows as windows
from harness.ops import FLOATS, Compile, Context, Launch, Op, Tensors, compiled_variants


def window_op(name: str, summary: str, eager: str, *, forward: bool) -> Op:
    """The op, with its variants. forward: whether y is windows in the direction `forward`. eager: torch's calls."""

    def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
        """A move has no rounding, so the case's precision is exact."""
        return {"y": windows.moved(ctx, t.x, forward)}

    op = Op(
        name,
        summary,
        symbols=windows.SYMBOLS,
        defaults=windows.DEFAULTS,
        choices={"direction": windows.DIRECTION},
        **windows.tensors(forward),
        reference=reference,
        tolerance=dict.fromkeys(FLOATS, (0.0, 0.0)),
    )

    @op.variant(
        "eager",
        f"{eager}; backward: what autograd runs",
        role="baseline",
        rows=("S5",),
        devices=ANY,
        returns=True,
        traffic=windows.eager_traffic,
    )
    def by_torch(ctx: Context) -> Launch:
        """Swin Transformer's own code, which skips a shift of 0."""
        return windows.by_torch(ctx, forward)

    @compiled_variants(op, "torch.compile of the same")
    def compile_(ctx: Context, compiled: Compile) -> Launch:
        """Inductor makes one kernel of it, in which all sizes are constants."""
        return windows.by_torch(ctx, forward, compiled)

    @op.variant("index_map", "one element a thread, with divisions and remainders", role="published", rows=("S5",))
    def index_map(ctx: Context) -> Launch:
        """The text's kernel."""
        return windows.index_map(ctx, forward)

    @op.variant(
        "tuned",
        "16 or 8 bytes an access at any sizes, multiplications in place of divisions",
        rows=("S5",),
        tuning=windows.tuning(forward),
    )
    def tuned(ctx: Context) -> Launch:
        """Units of whole accesses where sizes and addresses allow them."""
        return windows.tuned(ctx, forward)

    return op
