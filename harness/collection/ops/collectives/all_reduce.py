"""All-reduce: each rank gets the sum of all ranks' buffers, in place, as torch does it for gradients.

Numbers grow from call to call, and overflow in the end, which changes no time.
"""

from __future__ import annotations

from typing import Any

from harness.collection.ops.collectives._collectives import WHOLE, collective, total, twice_the_rest
from harness.ops import Context, Tensor, Tensors


def call(_ctx: Context, t: Tensors, group: Any) -> None:
    """Torch has this collective in place only."""
    from torch import distributed

    distributed.all_reduce(t.x, group=group)


OP = collective(
    "all_reduce",
    "the sum of all ranks' buffers, on every rank",
    call,
    total,
    sent=twice_the_rest,
    read=Tensor("x", WHOLE, inplace=True),
    rows=("O6",),
    again=lambda ctx, x: x.double() * ctx.group.size,
)
