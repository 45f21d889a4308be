"""Ops whose variants break the contract in every way that the check must see before it lets a time stand.

Their values are right: y is 2 x to the last bit. What is wrong is said by each variant's name and summary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.ops import Context, Launch, Op, Symbols, Tensor, Tensors

UNTIMED = 3
"""Calls before the timed calls: one prepares, one is checked."""


def doubled(_: Context, t: Tensors) -> dict[str, Any]:
    return {"y": t.x.double() * 2}


OP = Op(
    "dishonest",
    "y = 2 x",
    symbols={"N": "elements, an even number"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=doubled,
)


def returning(name: str, summary: str, make: Callable[[Tensors], Any]) -> None:
    """A variant that returns what `make` makes of the tensors."""
    OP.variant(name, summary, devices=("cpu",), returns=True)(lambda _: make)


def as_dtype(name: str) -> Callable[[Tensors], Any]:
    def make(t: Tensors) -> Any:
        import torch

        return ((t.x * 2).to(getattr(torch, name)),)

    return make


for wider in ("float32", "float64", "complex64"):
    returning(wider, "returns another dtype", as_dtype(wider))


def twice(t: Tensors) -> Any:
    return t.x * 2


def sparse(t: Tensors) -> Any:
    return (twice(t).to_sparse(),)


def elsewhere(t: Tensors) -> Any:
    return (twice(t).to("meta"),)


def lazy(t: Tensors) -> Any:
    """Real numbers whose sign isn't applied yet: a negative view."""
    import torch

    return (torch.complex(t.x.float(), t.x.float() * -2).conj().imag,)


def every_second(t: Tensors) -> Any:
    import torch

    wide = torch.empty(2 * t.x.numel(), dtype=t.x.dtype)
    return wide[::2].copy_(twice(t))


returning("tuple", "nothing is wrong", lambda t: (twice(t),))
returning("bare", "nothing is wrong: returns the tensor without a tuple", twice)
returning("gaps", "nothing is wrong: y is every second element of a larger tensor", lambda t: (every_second(t),))
returning("numbers", "returns a list of numbers", lambda t: (twice(t).tolist(),))
returning("none", "returns nothing", lambda t: None)
returning("too_many", "returns two outputs", lambda t: (twice(t), twice(t)))
returning("too_few", "returns an empty tuple", lambda t: ())
returning("column", "returns another shape", lambda t: (twice(t).view(-1, 1),))
returning("sparse", "returns a sparse tensor", sparse)
returning("elsewhere", "returns a tensor of another device", elsewhere)
returning("lazy", "returns a view that is yet to be computed", lazy)
returning("onto_x", "doubles x in place and returns it", lambda t: (t.x.mul_(2),))


@OP.variant("replaces", "puts another tensor in the place of y", devices=("cpu",))
def replaces(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.y = twice(t)

    return launch


def in_place(name: str, summary: str, change: Callable[[Tensors], Any]) -> None:
    """A variant that writes y, and then changes its inputs."""

    @OP.variant(name, summary, devices=("cpu",))
    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            t.y.copy_(twice(t))
            change(t)

        return launch


def swap(t: Tensors) -> None:
    t.x.copy_(t.x.flip(0))


def to_nan(t: Tensors) -> None:
    t.x[0] = float("nan")


in_place("swaps", "turns x around: the same numbers at other places", swap)
in_place("spoils", "one element of x becomes NaN", to_nan)
in_place("moves_x", "puts another tensor in the place of x after changing it", lambda t: vars(t).update(x=t.x.zero_()))


@OP.variant("late", "changes x in the timed calls only", devices=("cpu",))
def late(_: Context) -> Launch:
    calls = 0

    def launch(t: Tensors) -> None:
        nonlocal calls
        calls += 1
        t.y.copy_(twice(t))
        if calls > UNTIMED:
            t.x.zero_()

    return launch


# Inputs that aren't equal to themselves, or equal with other bits.


def special(ctx: Context) -> dict[str, Any]:
    import torch

    x = torch.randn(ctx.s.N, generator=ctx.generator, dtype=ctx.dtype)
    x[0], x[1] = float("nan"), -0.0
    return {"x": x}


SPECIAL = Op(
    "special",
    "y = x, where x has a NaN and a negative zero",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    make=special,
    reference=lambda _, t: {"y": t.x},
)
SPECIAL.variant("kept", "nothing is wrong", devices=("cpu",))(lambda _: lambda t: t.y.copy_(t.x))


@SPECIAL.variant("signless", "the zero of x becomes a positive one", devices=("cpu",))
def signless(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.y.copy_(t.x)
        t.x[1] = 0.0

    return launch


# Inputs that may change, and inputs that a variant declares itself.

UPDATE = Op(
    "update",
    "x = 2 x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",), inplace=True),),
    reference=lambda _, t: {"x": t.x.double() * 2},
)
UPDATE.variant("declared", "nothing is wrong: x is declared in place", devices=("cpu",))(
    lambda _: lambda t: t.x.mul_(2)
)

NEGATED = Op(
    "negated",
    "y = -x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    reference=lambda _, t: {"y": -t.x},
)


def negated(name: str, summary: str, change: Callable[[Tensors], Any], *, inplace: bool) -> None:
    """A variant with an input of its own, `minus`, which is -x."""
    inputs = (*NEGATED.inputs, Tensor("minus", ("N",), inplace=inplace))

    @NEGATED.variant(name, summary, devices=("cpu",), inputs=inputs, encode=lambda _, t: {"minus": -t.x})
    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            t.y.copy_(t.minus)
            change(t)

        return launch


negated("own", "changes the input that it declares itself", lambda t: t.minus.neg_(), inplace=False)
negated("own_declared", "nothing is wrong: the change is declared", lambda t: t.minus.abs_(), inplace=True)


# Several outputs.


def both(_: Context, t: Tensors) -> dict[str, Any]:
    return {"a": t.x, "b": t.x}


PAIR = Op(
    "pair",
    "a = x and b = x",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("a", ("N",)), Tensor("b", ("N",))),
    reference=both,
)


def paired(name: str, summary: str, make: Callable[[Tensors], Any]) -> None:
    PAIR.variant(name, summary, devices=("cpu",), returns=True)(lambda _: make)


def same(t: Tensors) -> Any:
    y = t.x.clone()
    return y, y


def interleaved(t: Tensors) -> Any:
    """Two outputs that share a buffer, but no byte of it."""
    import torch

    return torch.stack([t.x, t.x], dim=1).unbind(1)


paired("interleaved", "nothing is wrong: views of one buffer that don't overlap", interleaved)
paired("listed", "nothing is wrong: a list in place of a tuple", lambda t: [t.x.clone(), t.x.clone()])
paired("same", "one tensor for two outputs", same)
paired("input", "an input for an output", lambda t: (t.x.clone(), t.x))
paired("view", "a view of an input for an output", lambda t: (t.x.clone(), t.x.view(2, -1).view(-1)))


def ones(ctx: Context) -> dict[str, Any]:
    import torch

    return {"x": torch.ones(ctx.s.N, dtype=ctx.dtype)}


def overlapping(t: Tensors) -> Any:
    """Two outputs whose ranges of memory are apart but for one element."""
    n = t.x.numel()
    buffer = t.x.new_ones(2 * n - 1)
    return buffer[:n], buffer[n - 1 :]


CONSTANT = Op(
    "constant",
    "a = 1 and b = 1, both of N elements",
    symbols={"N": "elements"},
    inputs=(Tensor("x", ("N",)),),
    outputs=PAIR.outputs,
    make=ones,
    reference=both,
)
CONSTANT.variant("overlapping", "outputs that share one element", devices=("cpu",), returns=True)(lambda _: overlapping)
CONSTANT.variant("expanded", "an output with one element in memory", devices=("cpu",), returns=True)(
    lambda _: lambda t: (t.x.clone(), t.x.new_ones(1).expand(t.x.numel()))
)


# A list of tensors.


def lengths(symbols: Symbols) -> list[tuple[int, ...]]:
    return [(symbols["N"],), (2,)]


SEVERAL = Op(
    "several",
    "y = x for two tensors",
    symbols={"N": "elements"},
    inputs=(Tensor("x", lengths),),
    outputs=(Tensor("y", lengths),),
    reference=lambda _, t: {"y": t.x},
)


def listed(name: str, summary: str, make: Callable[[Tensors], Any]) -> None:
    SEVERAL.variant(name, summary, devices=("cpu",), returns=True)(lambda _: make)


@SEVERAL.variant("replaces", "puts another tensor into the list", devices=("cpu",))
def replaces_one(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        t.y[0].copy_(t.x[0])
        t.y[1] = t.x[1].clone()

    return launch


@SEVERAL.variant("writes", "nothing is wrong: writes into the tensors that it was given", devices=("cpu",))
def writes(_: Context) -> Launch:
    def launch(t: Tensors) -> None:
        for y, x in zip(t.y, t.x, strict=True):
            y.copy_(x)

    return launch


listed("list", "nothing is wrong", lambda t: [x.clone() for x in t.x])
listed("tuple", "nothing is wrong: a tuple of tensors for one output", lambda t: tuple(x.clone() for x in t.x))
listed("wrapped", "nothing is wrong: the list in a tuple", lambda t: ([x.clone() for x in t.x],))
listed("one_of_two", "returns one tensor of two", lambda t: [t.x[0].clone()])
listed("second_wide", "the second tensor has another dtype", lambda t: [t.x[0].clone(), t.x[1].double()])
listed("second_is_x", "the second tensor is the input's", lambda t: [t.x[0].clone(), t.x[1]])


# Results of a library that are a little off.


EXACT = Op(
    "exact",
    "y = 2 x, to the last bit",
    symbols=OP.symbols,
    inputs=OP.inputs,
    outputs=OP.outputs,
    reference=doubled,
    tolerance={"float16": (0.0, 0.0)},
)


def off_by(units: int, role: str, op: Op = OP) -> None:
    """A variant of this role whose y is off by so many units in the last place."""

    @op.variant(f"{role}_{units}", f"y is off by {units} units in the last place", role=role, devices=("cpu",))
    def prepare(_: Context) -> Launch:
        def launch(t: Tensors) -> None:
            import torch

            t.y.copy_(twice(t))
            t.y.view(torch.int16)[5] += units

        return launch


for kind in ("baseline", "peer", "published", "ours", "control"):
    off_by(4, kind)
off_by(400, "baseline")
off_by(1, "baseline", EXACT)
off_by(1, "ours", EXACT)


# Inputs that don't have all their elements in memory.


def mostly_zeros(ctx: Context) -> dict[str, Any]:
    import torch

    return {"x": torch.eye(ctx.s.N, dtype=ctx.dtype).to_sparse()}


SPARSE = Op(
    "sparse",
    "y = 2 x with a sparse x",
    symbols={"N": "rows and columns"},
    inputs=(Tensor("x", ("N", "N")),),
    outputs=(Tensor("y", ("N", "N")),),
    make=mostly_zeros,
    reference=lambda _, t: {"y": t.x.to_dense().double() * 2},
)
SPARSE.variant("dense", "nothing is wrong", devices=("cpu",), returns=True)(lambda _: lambda t: t.x.to_dense() * 2)
