"""An op of two processes: the harness starts both, and times what they do together."""

from __future__ import annotations

import os
from typing import Any

from harness.ops import Context, Launch, Op, Tensor, Tensors


def reduced(_ctx: Context, t: Tensors) -> dict[str, Any]:
    """The sum over ranks in double precision; ranks hold different numbers."""
    from torch import distributed

    total = t.x.double()
    distributed.all_reduce(total)
    return {"y": total}


OP = Op(
    "all_reduce",
    "sum over two ranks",
    symbols={"N": "elements of each rank"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    ranks="2",
    reference=reduced,
    tolerance={"float32": (1e-5, 1e-6)},
)


@OP.variant("gloo", "torch's all_reduce", devices=("cpu",))
def gloo(_ctx: Context) -> Launch:
    from torch import distributed

    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)
        distributed.all_reduce(t.y)

    return launch


@OP.variant("deserted", "rank 1 dies while rank 0 waits for it", devices=("cpu",))
def deserted(ctx: Context) -> Launch:
    together = gloo(ctx)

    def launch(t: Tensors) -> None:
        if ctx.group.rank == 1:
            os.abort()
        together(t)

    return launch


@OP.variant("stuck", "rank 1 never comes", devices=("cpu",))
def stuck(ctx: Context) -> Launch:
    together = gloo(ctx)

    def launch(t: Tensors) -> None:
        while ctx.group.rank == 1:
            pass
        together(t)

    return launch
