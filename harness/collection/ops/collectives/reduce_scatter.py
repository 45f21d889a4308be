"""Reduce-scatter: each rank gets its part of the sum of all ranks' buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.collectives._collectives import PART, WHOLE, collective, part, the_rest, total
from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch


def call(_ctx: Context, t: Tensors, group: Any) -> None:
    """The parts lie in one tensor."""
    from torch import distributed

    distributed.reduce_scatter_tensor(t.y, t.x, group=group)


def want(ctx: Context) -> torch.Tensor:
    """The part of the sum that is for this rank."""
    return part(ctx, total(ctx), ctx.group.rank)


OP = collective(
    "reduce_scatter",
    "a part of the sum of all ranks' buffers, on each rank",
    call,
    want,
    sent=the_rest,
    read=Tensor("x", WHOLE),
    written=Tensor("y", PART),
    split=True,
)
