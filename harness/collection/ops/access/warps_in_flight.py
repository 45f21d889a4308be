"""Chains of dependent FMAs, with a known number of warps and chains: row O17. Twin of warps_in_flight.cu.

What bytes_in_flight shows of memory, this shows of arithmetic: T / 32 * U chains of warps run on each multiprocessor.

The FMAs are counted as items and have no ceiling. The float32 peak among the limits is the peak of the library's
matrix products, which also fetch operands, so these chains may exceed it; and the few bytes of x and y aren't what
takes the time.
"""

from __future__ import annotations

import ctypes
from typing import Any

from harness.collection.ops.access._resident import grid_and_block, obstacles
from harness.collection.ops.elementwise import ANY
from harness.model import Case, Traffic, Work
from harness.ops import Context, Extremes, Launch, Op, Symbols, Tensor, Tensors

CHAINS = (1, 2, 4, 8)
FULL = 2048, 4
"""Threads of a multiprocessor and chains of a thread that are more than any GPU's arithmetic needs."""


FACTOR = 2.0**-13
"""The factor of a step: 8192 steps make an element e times as large, and one less changes it by twice the tolerance."""
_TOLERANCE = 2.0**-14
"""Relative: the roundings of 1000 steps if all go the same way, or of a million if they don't."""


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The steps one by one, in float64."""
    value = t.x.double()
    for _ in range(ctx.s.K):
        value = value * FACTOR + value
    return {"y": value}


OP = Op(
    "warps_in_flight",
    f"y = x after K steps of v = v * {FACTOR} + v",
    symbols={
        "N": "elements",
        "K": "steps, each of which needs the one before",
        "T": "threads a multiprocessor",
        "U": "chains of steps a thread",
    },
    defaults={"T": "2048", "U": "1"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32",),
    reference=reference,
    extremes=Extremes(exempt={"denormal": "thousands of steps round it, each by up to half of the smallest number"}),
    tolerance={"float32": (_TOLERANCE, 0.0)},
    work=lambda *_: Work(read=0, written=0),
    items="N * K",
    item="FMAs",
)


def limits(case: Case) -> str | None:
    """The reason why a shape's threads and chains can't all be resident; None if they can."""
    chains = case.symbols["U"]
    reasons = {
        f"U is {chains}; a thread has 1, 2, 4 or 8 chains": chains not in CHAINS,
        **obstacles(case.symbols["T"]),
        "the kernel's index has 32 bits": case.symbols["N"] >= 2**31,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _every_step(symbols: Symbols, size: int) -> Traffic:
    """Each step is a kernel, which reads and writes a tensor."""
    moved = symbols["K"] * symbols["N"] * size
    return Traffic(read=moved, written=moved)


@OP.variant("eager", "K calls of torch.add", role="baseline", devices=ANY, returns=True, traffic=_every_step)
def eager(ctx: Context) -> Launch:
    """The code that users write; memory takes the time, and T and U don't concern it."""
    import torch

    steps = range(ctx.s.K)

    def launch(t: Tensors) -> tuple[torch.Tensor]:
        value = t.x
        for _ in steps:
            value = torch.add(value, value, alpha=FACTOR)
        return (value,)

    return launch


@OP.variant(
    "chains",
    "T threads a multiprocessor, each with U chains of K FMAs at a time",
    role="published",
    rows=("O17",),
    unsupported=limits,
)
def chains(ctx: Context) -> Launch:
    """The whole grid is resident: a block for each multiprocessor, or two where T needs two."""
    return _resident(ctx, ctx.s.T, ctx.s.U)


def _full(case: Case) -> str | None:
    """Why `full` can't run a case."""
    threads, count = FULL
    sizes = dict(case.symbols) | {"T": threads, "U": count}
    return limits(Case(case.op, case.variant, case.dtype, tuple(sizes.items())))


@OP.variant("full", f"{FULL[0]} threads with {FULL[1]} chains; T and U don't concern it", unsupported=_full)
def full(ctx: Context) -> Launch:
    """What the arithmetic gives if enough is under way."""
    return _resident(ctx, *FULL)


def _resident(ctx: Context, threads: int, count: int) -> Launch:
    """A launch with so many threads a multiprocessor and chains a thread."""
    kernel = ctx.kernel("warps_in_flight.cu", "fma_chains", {"CHAINS": count})
    grid, block = grid_and_block(threads)
    scalars = ctypes.c_float(FACTOR), ctypes.c_uint32(ctx.s.N), ctypes.c_uint32(ctx.s.K), ctypes.c_uint32(grid * block)
    return lambda t: kernel(grid if ctx.s.N else 0, block, t.x, t.y, *scalars)
