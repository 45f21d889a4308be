"""An all-reduce beside a product of matrices, as gradients are summed over ranks while the backward goes on.

The sum of x (N) over all ranks and y = a b^T, of matrices of M x M, need nothing of each other. One after the other
they take the time of both, beside each other at best the time of the longer one, which is the ceiling. What they take
beyond it is what kernels of NCCL take from the product: multiprocessors, and bandwidth of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.collection.ops.collectives import _collectives
from harness.collection.ops.collectives._collectives import WHOLE, data, total, twice_the_rest
from harness.collection.ops.elementwise import ANY
from harness.collection.ops.gemm._products import expected
from harness.collection.ops.process_groups import backend_of, process_group, unsupported_alone
from harness.model import Work
from harness.ops import FLOATS, Context, Expected, Extremes, Launch, Op, Symbols, Tensor, Tensors

_SQUARE = ("M", "M")


def make(ctx: Context) -> dict[str, object]:
    """The buffer is whole numbers, whose sum is exact. The factors are random, others on each rank."""
    import torch

    size, how = ctx.s.M, {"generator": ctx.generator, "device": ctx.device, "dtype": ctx.dtype}
    factors = {name: torch.randn(size, size, **how) for name in ("a", "b")}
    return {"x": data(ctx, ctx.group.rank), **factors}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """The sum must be exact, and the product as one in higher precision."""
    yield from _collectives.check(ctx, t, "x", total, lambda ctx, x: x.double() * ctx.group.size)
    yield from expected("y", t.y, t.before.a, t.before.b)


def work(symbols: Symbols, itemsize: int) -> Work:
    """What both do. All of it may be done at the same time."""
    size, world = symbols["N"] * itemsize, symbols["world"]
    matrix = symbols["M"] ** 2 * itemsize
    sent = twice_the_rest(size, world) if world > 1 else 0
    return Work(read=size + 2 * matrix, written=size + matrix, flops=(("case", 2 * symbols["M"] ** 3),), sent=sent)


OP = Op(
    "gemm_all_reduce",
    "a product of matrices, and the sum of all ranks' buffers beside it",
    symbols={"M": "rows and columns of the matrices", "N": "elements of a rank's buffer"},
    # The buffer is the first one, as `data` expects.
    inputs=(Tensor("x", WHOLE, inplace=True), Tensor("a", _SQUARE), Tensor("b", _SQUARE)),
    outputs=(Tensor("y", _SQUARE),),
    dtypes=FLOATS,
    make=make,
    check=check,
    extremes=Extremes(exempt={"all": "each rank makes the data of all ranks again to check its own"}),
    work=work,
)


@OP.variant("in_turn", "the product, then the sum", role="baseline", devices=ANY, unsupported=unsupported_alone)
def in_turn(ctx: Context) -> Launch:
    """The sum begins when the product has ended."""
    import torch
    from torch import distributed

    group = process_group(backend_of(ctx.device.type))

    def launch(t: Tensors) -> None:
        torch.mm(t.a, t.b.mT, out=t.y)
        distributed.all_reduce(t.x, group=group)

    return launch


@OP.variant(
    "beside",
    "the sum begins first, on a stream of its own",
    role="baseline",
    devices=ANY,
    unsupported=unsupported_alone,
)
def beside(ctx: Context) -> Launch:
    """What follows on the device waits for both, as in DistributedDataParallel."""
    import torch
    from torch import distributed

    group = process_group(backend_of(ctx.device.type))

    def launch(t: Tensors) -> None:
        summing = distributed.all_reduce(t.x, group=group, async_op=True)
        torch.mm(t.a, t.b.mT, out=t.y)
        summing.wait()

    return launch
