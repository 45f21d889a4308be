"""An op of several GPUs: what NCCL adds up, and what goes wrong on one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from harness.model import Work
from harness.ops import Context, Launch, Op, Symbols, Tensor, Tensors


def summed(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The sum over ranks in double precision, on the host."""
    from torch import distributed

    total = t.x.double().cpu()
    if ctx.group.size > 1:
        distributed.all_reduce(total)
    return {"y": total.to(t.x.device)}


def ring(symbols: Symbols, itemsize: int) -> Work:
    """In a ring each of n devices sends 2 (n - 1) / n of its bytes."""
    size, world = symbols["N"] * itemsize, symbols["world"]
    sent = 2 * (world - 1) * size // world
    return Work(read=size, written=size, sent=sent, items=world * symbols["N"], item="elements")


OP = Op(
    "nccl_sum",
    "sum over GPUs",
    symbols={"N": "elements of each GPU"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=summed,
    work=ring,
    tolerance={"float32": (1e-5, 1e-6)},
)


@OP.variant("nccl", "torch's all_reduce", role="baseline")
def nccl(ctx: Context) -> Launch:
    """Alone a GPU only copies. Raises ValueError where rank k isn't on device k."""
    import torch
    from torch import distributed

    rank = ctx.group.rank
    if torch.cuda.current_device() != rank or ctx.device.index != rank:
        raise ValueError(f"rank {rank} is on device {torch.cuda.current_device()}, its tensors on {ctx.device}")
    if ctx.group.size == 1:
        return lambda t: t.y.copy_(t.x)
    gpus = distributed.new_group(backend="nccl")
    ctx.defer(lambda: distributed.destroy_process_group(gpus))

    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)
        distributed.all_reduce(t.y, group=gpus)

    return launch


@OP.variant("wrong_1", "rank 1 forgets a half")
def wrong_1(ctx: Context) -> Launch:
    together = nccl(ctx)

    def launch(t: Tensors) -> None:
        together(t)
        if ctx.group.rank == 1:
            t.y[: ctx.s.N // 2] = 0

    return launch


def unless_rank_1(fails: Callable[[], object]) -> Callable[[Context], Launch]:
    """Rank 1 does `fails` while rank 0 waits for it on the device."""

    def prepare(ctx: Context) -> Launch:
        together = nccl(ctx)

        def launch(t: Tensors) -> None:
            if ctx.group.rank == 1:
                fails()
            together(t)

        return launch

    return prepare


def run_out() -> None:
    """Allocate more memory than there is."""
    import torch

    torch.empty(2**50, dtype=torch.uint8, device="cuda")


def never_end() -> None:
    """Sleep for longer than any test."""
    time.sleep(600)


OP.variant("deserted", "rank 1 dies")(unless_rank_1(os.abort))
OP.variant("starved", "rank 1 has no memory left")(unless_rank_1(run_out))
OP.variant("stuck", "rank 1 never comes")(unless_rank_1(never_end))


@OP.variant("stranded", "rank 1 raises while rank 0 waits for it on the device")
def stranded(ctx: Context) -> Launch:
    together = nccl(ctx)

    def launch(t: Tensors) -> None:
        if ctx.group.rank == 1:
            raise ValueError("no such GPU")
        together(t)

    return launch
