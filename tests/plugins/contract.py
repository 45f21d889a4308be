"""One small op for each kind of work that the contract must carry; `ranks.py` has the op of several processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from queue import Queue
from threading import Thread
from typing import Any

from harness import metrics, units
from harness.model import Work
from harness.ops import Choice, Context, Launch, Op, Symbols, Tensor, Tensors

# A list of tensors of different sizes, updated in place, with a flag as second output: the shape of gradient unscaling.


def _lengths(symbols: Symbols) -> list[tuple[int, ...]]:
    return [(1 + 7 * i % symbols["M"],) for i in range(symbols["L"])]


def unscaled(_: Context, t: Tensors) -> dict[str, Any]:
    import torch

    finite = all(bool(g.isfinite().all()) for g in t.grads)
    return {"grads": [g.double() * t.inverse.double() for g in t.grads], "found": torch.tensor([int(not finite)])}


def half(ctx: Context) -> dict[str, Any]:
    """Gradients with one infinity among them, and a scale whose powers stay finite."""
    import torch

    grads = [torch.randn(n, generator=ctx.generator, dtype=ctx.dtype) for n in _lengths(ctx.case.values)]
    grads[3][0] = math.inf
    return {"grads": grads, "inverse": torch.tensor([0.5], dtype=ctx.dtype)}


UNSCALE = Op(
    "unscale_list",
    "multiplies every tensor of a list in place; one flag tells if any element isn't finite",
    symbols={"L": "tensors", "M": "length of the longest"},
    inputs=(Tensor("grads", _lengths, inplace=True), Tensor("inverse", (1,))),
    outputs=(Tensor("found", (1,), "int32"),),
    reference=unscaled,
    make=half,
    dtypes=("float32",),
)


@UNSCALE.variant("loop", "one call a tensor", devices=("cpu",))
def loop(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.found.zero_()
        for grad in t.grads:
            t.found.bitwise_or_((~grad.isfinite().all()).int())
            grad.mul_(t.inverse)

    return launch


@UNSCALE.variant("forgetful", "wrong: skips the last tensor", devices=("cpu",))
def forgetful(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.found.fill_(1)
        for grad in t.grads[:-1]:
            grad.mul_(t.inverse)

    return launch


# Outputs that differ by variant: a mask of bytes, or of bits. The op's output is the bytes; the bits are declared by
# the variant that makes them, and decoded for the check. Its backward reads either, encoded from the op's inputs.


def mask_of(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": (t.x > 0).byte()}


MASK = Op(
    "mask",
    "mask of x > 0",
    symbols={"N": "elements, a multiple of 8"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("mask", ("N",), "uint8"),),
    reference=mask_of,
    dtypes=("float32",),
)


def _weights() -> Any:
    import torch

    return 2 ** torch.arange(8, dtype=torch.uint8)


def unpacked(_: Context, t: Tensors) -> dict[str, Any]:
    return {"mask": (t.bits[:, None] & _weights()).bool().byte().reshape(-1)}


@MASK.variant("bytes", "a byte an element", devices=("cpu",))
def as_bytes(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.mask.copy_(t.x > 0)

    return launch


@MASK.variant(
    "bits", "a bit an element", devices=("cpu",), outputs=(Tensor("bits", ("N // 8",), "uint8"),), decode=unpacked
)
def as_bits(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.bits.copy_(((t.x > 0).reshape(-1, 8) * _weights()).sum(1))

    return launch


def gradient(_: Context, t: Tensors) -> dict[str, Any]:
    return {"dx": t.dy.double() * t.mask}


def random_mask(ctx: Context) -> dict[str, Any]:
    import torch

    n = ctx.s.N
    return {
        "dy": torch.randn(n, generator=ctx.generator, dtype=ctx.dtype),
        "mask": torch.randint(0, 2, (n,), generator=ctx.generator, dtype=torch.uint8),
    }


def packed(_: Context, t: Tensors) -> dict[str, Any]:
    return {"bits": (t.mask.reshape(-1, 8) * _weights()).sum(1).byte()}


MASK_GRAD = Op(
    "mask_grad",
    "dx = dy where the mask is set",
    symbols={"N": "elements, a multiple of 8"},
    inputs=(Tensor("dy", ("N",)), Tensor("mask", ("N",), "uint8")),
    outputs=(Tensor("dx", ("N",)),),
    reference=gradient,
    make=random_mask,
    dtypes=("float32",),
)


@MASK_GRAD.variant("bytes", "reads a byte an element", devices=("cpu",), returns=True)
def from_bytes(_: Context) -> Launch:
    return lambda t: (t.dy * t.mask,)


@MASK_GRAD.variant(
    "bits",
    "reads a bit an element",
    devices=("cpu",),
    inputs=(Tensor("dy", ("N",)), Tensor("bits", ("N // 8",), "uint8")),
    encode=packed,
)
def from_bits(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.dx.copy_(t.dy * (t.bits[:, None] & _weights()).bool().reshape(-1))

    return launch


# Random outputs, checked by their statistics.


def unlikely(ctx: Context, t: Tensors) -> Iterator[str]:
    """A complaint if the share of ones lies more than 5 sigma from a half."""
    n = ctx.s.N
    off = abs(float(t.mask.float().mean()) - 0.5)
    if off > 5 * math.sqrt(0.25 / n):
        yield f"the share of ones is off by {off:.4f}"


COIN = Op(
    "coin",
    "random bytes, one with probability 1/2",
    symbols={"N": "elements"},
    outputs=(Tensor("mask", ("N",), "uint8"),),
    check=unlikely,
    dtypes=("float32",),
    items="N",
    item="numbers",
)


@COIN.variant("fair", "torch's bernoulli_", devices=("cpu",))
def fair(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.mask.bernoulli_(0.5)

    return launch


@COIN.variant("loaded", "wrong: three in five", devices=("cpu",))
def loaded(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.mask.bernoulli_(0.6)

    return launch


# Work counted in samples: no tensors of the harness's, no bytes, no reference.


def no_bytes(symbols: Symbols, _itemsize: int) -> Work:
    return Work(read=0, written=0, items=symbols["B"], item="samples")


STEP = Op(
    "step",
    "a training step, counted in samples",
    symbols={"B": "batch"},
    work=no_bytes,
    dtypes=("float32",),
    unchecked="its outputs are a model's weights",
)


@STEP.variant("eager", "a linear layer and its gradient", devices=("cpu",))
def step(ctx: Context) -> Launch:
    import torch

    layer = torch.nn.Linear(16, 4)
    batch = torch.randn(ctx.s.B, 16)

    def launch(_: Tensors) -> None:
        layer(batch).sum().backward()

    return launch


# A pipeline: a thread fills a queue that the calls empty. It has to be closed when the case is over, it tells how full
# its queue was, and a choice says what goes through it.

metrics.fact(
    "queue_filled", "share of the queue that is filled", units.SHARE, "how full the queue is when a call takes from it"
)
CLOSED: list[str] = []
"""What each pipeline of this process carried that has been closed."""

FEED = Op(
    "feed",
    "takes the next item of a queue",
    symbols={"D": "depth of the queue"},
    choices={"kind": Choice("what an item is", ("number", "text"))},
    work=lambda _symbols, _itemsize: Work(items=1, item="items"),
    timer="steady",
    dtypes=("float32",),
    unchecked="a pipeline has no result",
)


@FEED.variant("thread", "one thread fills the queue", role="baseline", devices=("cpu",))
def thread(ctx: Context) -> Launch:
    queue: Queue[object] = Queue(maxsize=ctx.s.D)
    item = {"number": 1, "text": "one"}[ctx.s.kind]
    open_ = [True]

    def fill() -> None:
        while open_:
            queue.put(item)

    feeder = Thread(target=fill, daemon=True)
    feeder.start()

    def close() -> None:
        open_.clear()
        while feeder.is_alive():
            _ = queue.empty() or queue.get()
        CLOSED.append(ctx.s.kind)

    ctx.defer(close)

    def launch(_: Tensors) -> None:
        ctx.report("queue_filled", queue.qsize() / ctx.s.D)
        assert queue.get() == item

    return launch
