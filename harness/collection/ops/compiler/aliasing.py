"""Sum and difference, with and without reads between the writes: row O20. Twin of aliasing.cu."""

from __future__ import annotations

from typing import Any

from harness.collection.ops.compiler._launches import by_elements, by_packs
from harness.collection.ops.elementwise import BOTH, widened
from harness.model import Traffic
from harness.ops import Compile, Context, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

ITEMS = 4  # elements a thread of all kernels but tuned


def reference(_: Context, t: Tensors) -> dict[str, Any]:
    """The reference computes in higher precision."""
    x, w = widened(t.x, t.w)
    return {"sum": x + w, "difference": x - w}


OP = Op(
    "aliasing",
    "sum = x + w, difference = x - w, in one kernel",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)), Tensor("w", ("N",))),
    outputs=(Tensor("sum", ("N",)), Tensor("difference", ("N",))),
    reference=reference,
)


def unfused(symbols: Symbols, itemsize: int) -> Traffic:
    """Two kernels, each of which reads both inputs."""
    tensor = symbols["N"] * itemsize
    return Traffic(read=4 * tensor, written=2 * tensor)


@OP.variant("eager", "x + w and x - w, two kernels", role="baseline", devices=BOTH, returns=True, traffic=unfused)
def eager(_: Context) -> Launch:
    """The code that users write today."""
    return lambda t: (t.x + t.w, t.x - t.w)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel for exactly this shape."""
    function = compiled(lambda x, w: (x + w, x - w))
    return lambda t: function(t.x, t.w)


@OP.variant(
    "may_alias",
    "four elements a thread; each write might change what is read next",
    role="published",
    rows=("O20",),
)
def may_alias(ctx: Context) -> Launch:
    """The text before: every input is read twice, and each element's reads wait for the writes of the one before."""
    return by_elements(ctx, "aliasing_may_alias", ITEMS)


@OP.variant("restrict", "the same body, its pointers promised not to overlap", role="published", rows=("O20",))
def restrict(ctx: Context) -> Launch:
    """The text after: one read of each input, all before the first write."""
    return by_elements(ctx, "aliasing_restrict", ITEMS)


@OP.variant(
    "load_first", "plain pointers, but all reads written before the first write", role="published", rows=("O20",)
)
def load_first(ctx: Context) -> Launch:
    """The text after, without a promise to the compiler."""
    return by_elements(ctx, "aliasing_load_first", ITEMS)


@OP.variant("tuned", "one pack of x and one of w a thread")
def tuned(ctx: Context) -> Launch:
    """It goes element by element where a tensor isn't aligned to 16 bytes."""
    return by_packs(ctx, "aliasing_tuned")
