"""Variants of ops of several ranks that are right when they are checked, and not when they are timed."""

from __future__ import annotations

from typing import Any

from harness.ops import Context, Launch, Tensors, find

RIGHT = 4
"""Calls that are right: one prepares, one is checked, and two begin to measure."""


@find("all_gather").variant("keeps", "rank 1 gives the result that it had first", devices=("cpu",))
def keeps(ctx: Context) -> Launch:
    together = ctx.op.variants["gloo"].prepare(ctx)
    calls = iter(range(10**9))
    kept: list[Any] = []

    def launch(t: Tensors) -> None:
        together(t)
        if ctx.group.rank == 1:
            if not kept:
                kept.append(t.y.clone())
            if next(calls) >= RIGHT:
                t.y.copy_(kept[0])

    return launch


@find("all_reduce").variant("idles", "no rank communicates any more", devices=("cpu",))
def idles(ctx: Context) -> Launch:
    together = ctx.op.variants["gloo"].prepare(ctx)
    calls = iter(range(10**9))

    def launch(t: Tensors) -> None:
        if next(calls) < RIGHT:
            together(t)

    return launch


@find("bert_scaling").variant("drifts", "weights of rank 1 change apart from the others", devices=("cpu",))
def drifts(ctx: Context) -> Launch:
    together = find("bert_scaling").variants["ddp"].prepare(ctx)
    calls = iter(range(10**9))

    def launch(t: Tensors) -> None:
        import torch

        together(t)
        if next(calls) >= RIGHT and ctx.group.rank == 1:
            with torch.no_grad():
                t.steps.trainer.weights[0].mul_(1.001)

    return launch
