"""Ops of several processes: the harness starts one a device, and times what they do together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.ops import Context, Launch, Op, Tensor, Tensors


def reduced(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The sum over ranks in double precision; ranks hold different numbers."""
    from torch import distributed

    total = t.x.double()
    if ctx.group.size > 1:
        distributed.all_reduce(total)
    return {"y": total}


REDUCE = Op(
    "rank_sum",
    "sum over ranks",
    symbols={"N": "elements of each rank"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=reduced,
    tolerance={"float32": (1e-5, 1e-6)},
    items="N * world",
    item="elements",
)


@REDUCE.variant("gloo", "torch's all_reduce; a copy where there is one rank", devices=("cpu",))
def gloo(ctx: Context) -> Launch:
    from torch import distributed

    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)
        if ctx.group.size > 1:
            distributed.all_reduce(t.y)

    return launch


def unless_rank_1(fails: Callable[[], object]) -> Callable[[Context], Launch]:
    """Rank 1 does `fails` while rank 0 waits for it in a collective."""

    def prepare(ctx: Context) -> Launch:
        together = gloo(ctx)

        def launch(t: Tensors) -> None:
            if ctx.group.rank == 1:
                fails()
            together(t)

        return launch

    return prepare


def never_end() -> None:
    """What a deadlock looks like from outside."""
    while True:
        pass


def refuse() -> None:
    """Raise, as a library does that is asked for too much."""
    raise ValueError("no such tree")


REDUCE.variant("deserted", "rank 1 dies while rank 0 waits for it", devices=("cpu",))(unless_rank_1(os.abort))
REDUCE.variant("stuck", "rank 1 never comes", devices=("cpu",))(unless_rank_1(never_end))


def run_out() -> None:
    """Allocate more memory than there is."""
    import torch

    torch.empty(2**55, dtype=torch.uint8)


REDUCE.variant("starved", "rank 1 has no memory left while rank 0 waits for it", devices=("cpu",))(
    unless_rank_1(run_out)
)
REDUCE.variant("refused", "rank 1 raises while rank 0 waits for it", devices=("cpu",))(unless_rank_1(refuse))


APART = Op(
    "apart",
    "a copy that each rank makes by itself, so that no rank notices what another one does",
    symbols={"N": "elements of each rank"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=lambda _ctx, t: {"y": t.x.double()},
)


def copy(t: Tensors) -> None:
    t.y.copy_(t.x)


@APART.variant("fine", "nothing goes wrong", devices=("cpu",))
def fine(_ctx: Context) -> Launch:
    return copy


@APART.variant("wrong_0", "wrong on rank 0, slow on rank 1", devices=("cpu",))
def wrong_on_0(ctx: Context) -> Launch:
    """Rank 0 writes nothing; a call of the other one takes 20 ms."""

    def launch(t: Tensors) -> None:
        if ctx.group.rank:
            time.sleep(0.02)
            copy(t)

    return launch


def listening(_case: object) -> str:
    """The addresses at which this process listens, whoever opened the ports."""
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()]
    hosts = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    return f"listens at {', '.join(sorted(hosts)).replace('0100007F', '127.0.0.1')}"


APART.variant("tells", "says where it listens", devices=("cpu",), unsupported=listening)(fine)
