"""All-to-all: each rank sends a part of its buffer to each rank, as experts of a mixture do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.collectives._collectives import WHOLE, collective, data, part, the_rest
from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch


def call(_ctx: Context, t: Tensors, group: Any) -> None:
    """All parts are of one size."""
    from torch import distributed

    distributed.all_to_all_single(t.y, t.x, group=group)


def want(ctx: Context) -> torch.Tensor:
    """The part of each rank's input that is for this rank."""
    import torch

    return torch.cat([part(ctx, data(ctx, rank), ctx.group.rank) for rank in range(ctx.group.size)])


OP = collective(
    "all_to_all",
    "a part of the buffer of each rank, on each rank",
    call,
    want,
    sent=the_rest,
    read=Tensor("x", WHOLE),
    written=Tensor("y", WHOLE),
    split=True,
)
