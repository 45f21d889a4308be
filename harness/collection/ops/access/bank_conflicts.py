"""Columns of a tile in shared memory, whose words meet in banks: row O23. Twin of bank_conflicts.cu.

A lane has a row of W words, and reads its words in turn, K times. Words that lanes read at the same time lie a row
apart, so that gcd(W, 32) lanes meet in each bank.

The reads are counted as items and have no ceiling: no limit of the machine is measured for shared memory, and the few
bytes of x and y aren't what takes the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness import metrics, units
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, BLOCK, blocks
from harness.metrics import Metric
from harness.model import Case, Traffic, Work
from harness.ops import Context, Extremes, Launch, Op, Symbols, Tensor, Tensors

if TYPE_CHECKING:
    import torch

PLAIN, PADDED, SWIZZLED = range(3)
"""Layouts of a tile, as in bank_conflicts.cu."""
_SHARED = 48 * 1024
"""Bytes of shared memory that a block may have on every GPU."""
_LARGEST = 8
"""Elements are whole numbers up to it, so that sums are exact in any order, and a read too many or too few shows."""
_ITEM = "reads of shared memory"
_TRANSACTIONS = "bank_transactions"
_MOST_READS = 2**24 // _LARGEST
"""Reads of a lane whose sum is exact in float32."""


def make(ctx: Context) -> dict[str, Any]:
    """Whole numbers for x."""
    import torch

    sizes = (ctx.s.M, ctx.s.W)
    x = torch.randint(-_LARGEST, _LARGEST + 1, sizes, generator=ctx.generator, device=ctx.device, dtype=torch.int32)
    return {"x": x.to(ctx.dtype)}


def reference(ctx: Context, t: Tensors) -> dict[str, Any]:
    """A row is read K // W times as a whole, and K % W words of it once more."""
    x, (whole, rest) = t.x.double(), divmod(ctx.s.K, ctx.s.W)
    return {"y": whole * x.sum(1) + x[:, :rest].sum(1)}


OP = Op(
    "bank_conflicts",
    "y[m] = the sum of x[m, k % W] for k < K",
    symbols={
        "M": "rows, one a lane",
        "W": "words of a row; gcd(W, 32) lanes meet in a bank",
        "K": "reads of a lane",
    },
    inputs=(Tensor("x", ("M", "W")),),
    outputs=(Tensor("y", ("M",)),),
    dtypes=("float32",),
    make=make,
    extremes=Extremes(exempt={"all": "sums of whole numbers up to 8 alone are exact in any order"}),
    reference=reference,
    tolerance={"float32": (0.0, 0.0)},
    work=lambda *_: Work(read=0, written=0),
    items="M * K",
    item=_ITEM,
)


def _transactions(attached: Mapping[str, float], _: float | None) -> float | None:
    """Wavefronts of shared memory, over the wavefronts without conflicts; None without the counters.

    A wavefront is the hardware's word for a transaction: what the banks give in a cycle.
    """
    wavefronts, conflicts = (attached.get(f"ncu.shared_{name}") for name in ("wavefronts", "conflicts"))
    if wavefronts is None or conflicts is None or wavefronts <= conflicts:
        return None
    return wavefronts / (wavefronts - conflicts)


metrics.add(
    Metric(
        _TRANSACTIONS,
        "transactions of shared memory an access",
        units.PLAIN,
        lambda s: s.facts.get(_TRANSACTIONS),
        "transactions that an access of a warp to shared memory takes, by counters; 1 without bank conflicts",
        "lower",
        head="transactions an access",
        keep=6,
        shown=lambda s: s.work is not None and s.work.item == _ITEM,  # every op with counters has the figure
        reported=True,
        attached=_transactions,
    ),
    after="local_bytes",
)


def threads_of(words: int) -> int:
    """Threads of a block, each with a padded row of so many words in shared memory; 0 if not even a warp has room."""
    room = _SHARED // ((words | 1) * 4)
    return min(BLOCK, room // WARP * WARP)


def limits(case: Case) -> str | None:
    """The reason why the kernel can't run a shape; None if it can."""
    words, reads = case.symbols["W"], case.symbols["K"]
    if not threads_of(words):
        return f"W is {words}; {WARP} such rows don't fit into the {_SHARED // 1024} KiB of shared memory of a block"
    return f"K is {reads}; sums of more than {_MOST_READS} reads aren't exact" if reads > _MOST_READS else None


def _needs_power_of_2(case: Case) -> str | None:
    words = case.symbols["W"]
    return f"W is {words}; an XOR stays in rows of a power of two" if words & (words - 1) else limits(case)


def _every_read(symbols: Symbols, size: int) -> Traffic:
    """Each read is a kernel, which reads a column and the sums, and writes the sums."""
    moved = symbols["K"] * symbols["M"] * size
    return Traffic(read=2 * moved, written=moved)


@OP.variant("eager", "K calls of torch.add", role="baseline", devices=ANY, returns=True, traffic=_every_read)
def eager(ctx: Context) -> Launch:
    """The code that users write; device memory takes the time, and banks don't concern it."""
    import torch

    columns = [k % ctx.s.W for k in range(ctx.s.K)]

    def launch(t: Tensors) -> tuple[torch.Tensor]:
        total = torch.zeros_like(t.x[:, 0])
        for column in columns:
            total = torch.add(total, t.x[:, column])
        return (total,)

    return launch


@OP.variant(
    "plain", "rows follow each other: gcd(W, 32) lanes meet in a bank", role="published", rows=("O23",),
    unsupported=limits,
)  # fmt: skip
def plain(ctx: Context) -> Launch:
    """The text before: lanes that meet in a bank wait for each other."""
    return _launch(ctx, PLAIN)


@OP.variant(
    "padded", "a word more behind each row, where W is even", role="published", rows=("O23",), unsupported=limits
)
def padded(ctx: Context) -> Launch:
    """The text after: from one lane's word to the next lane's is an odd number of words, so no two lanes meet."""
    return _launch(ctx, PADDED)


@OP.variant(
    "swizzled",
    "words of a row change places, by an XOR with a number of the row",
    role="published",
    rows=("O23",),
    unsupported=_needs_power_of_2,
)
def swizzled(ctx: Context) -> Launch:
    """The text after, without memory for padding."""
    return _launch(ctx, SWIZZLED)


def _launch(ctx: Context, layout: int) -> Launch:
    """A launch of the kernel. All layouts have the threads that the padded one has room for."""
    threads = threads_of(ctx.s.W)
    kernel = ctx.kernel("bank_conflicts.cu", "bank_conflicts", {"WORDS": ctx.s.W, "LAYOUT": layout, "THREADS": threads})
    grid, sizes = blocks(ctx.s.M, threads), (ctypes.c_int64(ctx.s.M), ctypes.c_uint32(ctx.s.K))
    return lambda t: kernel(grid, threads, t.x, t.y, *sizes)
