"""Broadcast: every rank gets the buffer of rank 0, in place, as torch does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.collectives._collectives import WHOLE, all_of_it, collective, data
from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch


def call(_ctx: Context, t: Tensors, group: Any) -> None:
    """Torch has this collective in place only."""
    from torch import distributed

    distributed.broadcast(t.x, src=0, group=group)


def want(ctx: Context) -> torch.Tensor:
    """The input of rank 0."""
    return data(ctx, 0)


OP = collective(
    "broadcast",
    "the buffer of rank 0, on every rank",
    call,
    want,
    sent=all_of_it,
    read=Tensor("x", WHOLE, inplace=True),
    again=lambda _, x: x,
)
