"""Send and receive: each rank sends its buffer to the next one, all at the same time, as stages of a pipeline do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.ops.collectives._collectives import WHOLE, all_of_it, collective, data
from harness.ops import Context, Tensor, Tensors

if TYPE_CHECKING:
    import torch


def call(ctx: Context, t: Tensors, group: Any) -> None:
    """Both in one batch, so that no rank waits for another one to begin."""
    from torch import distributed

    rank, size = ctx.group.rank, ctx.group.size
    sending = distributed.P2POp(distributed.isend, t.x, (rank + 1) % size, group)
    receiving = distributed.P2POp(distributed.irecv, t.y, (rank - 1) % size, group)
    for request in distributed.batch_isend_irecv([sending, receiving]):
        request.wait()


def want(ctx: Context) -> torch.Tensor:
    """The input of the rank before this one."""
    return data(ctx, (ctx.group.rank - 1) % ctx.group.size)


OP = collective(
    "send_recv",
    "the buffer of the rank before, in a ring",
    call,
    want,
    sent=all_of_it,
    read=Tensor("x", WHOLE),
    written=Tensor("y", WHOLE),
)
