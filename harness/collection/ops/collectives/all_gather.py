"""All-gather: each rank gets the buffers of all ranks, one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.collectives._collectives import PART, WHOLE, collective, data, the_rest
from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch


def call(_ctx: Context, t: Tensors, group: Any) -> None:
    """All parts go into one tensor."""
    from torch import distributed

    distributed.all_gather_into_tensor(t.y, t.x, group=group)


def want(ctx: Context) -> torch.Tensor:
    """The inputs of all ranks."""
    import torch

    return torch.cat([data(ctx, rank) for rank in range(ctx.group.size)])


OP = collective(
    "all_gather",
    "the buffers of all ranks, on every rank",
    call,
    want,
    sent=the_rest,
    read=Tensor("x", PART),
    written=Tensor("y", WHOLE),
    split=True,
)
