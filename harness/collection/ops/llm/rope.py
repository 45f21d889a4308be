"""Rotary position embeddings of queries and keys in one launch, and their backward: beyond the texts. Twin of rope.cu.

q: (T, Q, D), k: (T, K, D): tokens, heads, elements of a head. cos, sin: (P, D / 2), by positions; each token has one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from harness import cuda
from harness.collection.ops.chip import WARP
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Case, Traffic, Work
from harness.ops import (
    ITEMSIZE,
    Built,
    Choice,
    Compile,
    Context,
    Expected,
    Extremes,
    Launch,
    Op,
    Plan,
    Symbols,
    Tensor,
    Tensors,
    Tuning,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch

_BASE = 10_000.0
_EACH, _EVERY_EACH = 4, (1, 2, 4, 8)  # heads that a thread has at most, by the rule, and those that there may be
_MOST_EACH = 8
_MOST_THREADS = 1024
_CHECKED = 2**22  # elements checked at a time
_FLOAT, _LONG = 4, 8  # bytes


def make(ctx: Context) -> dict[str, Any]:
    """Normal numbers; the angles of transformers' Llama; positions in any order, as sequences of a batch have them."""
    import torch

    options = {"generator": ctx.generator, "device": ctx.device}
    half = ctx.s.D // 2
    angles = torch.arange(ctx.s.P, dtype=torch.float64)[:, None] * _BASE ** (
        -torch.arange(half).double() / max(1, half)
    )
    return {
        "q": torch.randn((ctx.s.T, ctx.s.Q, ctx.s.D), dtype=ctx.dtype, **options),
        "k": torch.randn((ctx.s.T, ctx.s.K, ctx.s.D), dtype=ctx.dtype, **options),
        "cos": angles.cos().float().to(ctx.device),
        "sin": angles.sin().float().to(ctx.device),
        "positions": torch.randint(0, ctx.s.P, (ctx.s.T,), **options),
    }


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """Each result is a sum of two products; float32 rounds each of them, and the sum is rounded to the case's type.

    Torch's functions also round the angles, and each product, to the case's type.
    """
    import torch

    unit = torch.finfo(ctx.dtype)
    lost = 2 * unit.eps if ctx.op.variants[ctx.case.variant].is_library else 2**-22
    before = t.before
    for name, output in (("q", "q_out"), ("k", "k_out")):
        x, got = getattr(before, name), getattr(t, output)
        a_token = max(1, x.shape[1] * x.shape[2])
        step = max(1, _CHECKED // a_token)
        for first in range(0, len(x), step):
            part = slice(first, first + step)
            angles = [table[before.positions[part]].double()[:, None] for table in (before.cos, before.sin)]
            want, size = _rotated(ctx, x[part].double(), *angles)
            allowed = lost * size + unit.eps / 2 * want.abs() + unit.tiny * unit.eps
            yield Expected(output, got[part], want, allowed, first * a_token)


def _rotated(ctx: Context, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rotated heads, and the sums of the sizes of both products, in the type of x."""
    import torch

    first, second = _pairs(ctx, x)
    sin = -sin if ctx.s.way == "backward" else sin
    made = first * cos - second * sin, second * cos + first * sin
    sizes = (first * cos).abs() + (second * sin).abs(), (second * cos).abs() + (first * sin).abs()
    if ctx.s.pairs == "halves":
        return torch.cat(made, -1), torch.cat(sizes, -1)
    return torch.stack(made, -1).flatten(-2), torch.stack(sizes, -1).flatten(-2)


def _pairs(ctx: Context, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the second elements of all pairs: views."""
    if ctx.s.pairs == "halves":
        first, second = x.split(max(1, x.shape[-1] // 2), -1)
        return first, second
    return x[..., ::2], x[..., 1::2]


def _work(symbols: Symbols, size: int) -> Work:
    """The tensors q and k, and the rows of the tables that tokens have, each of which is read once."""
    moved = symbols["T"] * (symbols["Q"] + symbols["K"]) * symbols["D"] * size
    rows = min(symbols["T"], symbols["P"])
    return Work(moved + rows * symbols["D"] * _FLOAT + symbols["T"] * _LONG, moved)


OP = Op(
    "rope",
    "pairs of elements of queries and keys, rotated by their positions",
    symbols={
        "T": "tokens",
        "Q": "heads of queries",
        "K": "heads of keys",
        "D": "elements of a head",
        "P": "positions that cos and sin have",
    },
    choices={
        "pairs": Choice(
            "which elements of a head are a pair: those of its halves, or neighbours", ("halves", "interleaved")
        ),
        "way": Choice("whether angles are those of the forward, or the opposite ones", ("forward", "backward")),
    },
    inputs=(
        Tensor("q", ("T", "Q", "D")),
        Tensor("k", ("T", "K", "D")),
        Tensor("cos", ("P", "D // 2"), "float32"),
        Tensor("sin", ("P", "D // 2"), "float32"),
        Tensor("positions", ("T",), "int64"),
    ),
    outputs=(Tensor("q_out", ("T", "Q", "D")), Tensor("k_out", ("T", "K", "D"))),
    make=make,
    check=check,
    extremes=Extremes(
        exempt=dict.fromkeys(("cos", "sin"), "they lie between -1 and 1"),
        largest=dict.fromkeys(("float32", "bfloat16"), 2.0**126),
        why="two products of about the same size are added in float32",
    ),
    work=_work,
    items="T",
    item="tokens",
)


def odd(case: Case) -> str | None:
    """Why heads can't be rotated; None if they can."""
    return "elements of a head are pairs: D must be even" if case.symbols["D"] % 2 else None


def _apply(ctx: Context, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """A head times cos, and the head with its pairs turned times sin, as transformers has it."""
    import torch

    first, second = _pairs(ctx, x)
    if ctx.s.pairs == "halves":
        turned = torch.cat((-second, first), -1)
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    else:
        turned = torch.stack((-second, first), -1).flatten(-2)
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    return x * cos - turned * sin if ctx.s.way == "backward" else x * cos + turned * sin


def _both(  # noqa: PLR0913, PLR0917 - the op's inputs
    ctx: Context, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, with the angles in their type, as transformers has them."""
    cos, sin = (table[positions].to(q.dtype)[:, None] for table in (cos, sin))
    return _apply(ctx, q, cos, sin), _apply(ctx, k, cos, sin)


def _by_torch(symbols: Symbols, size: int) -> Traffic:
    """A negative half, halves put together, two products and a sum, for queries and for keys."""
    moved = symbols["T"] * (symbols["Q"] + symbols["K"]) * symbols["D"] * size
    return Traffic(11 * moved // 2, 9 * moved // 2)


@OP.variant(
    "eager",
    "transformers' apply_rotary_pos_emb",
    role="baseline",
    devices=ANY,
    returns=True,
    traffic=_by_torch,
    unsupported=odd,
)
def eager(ctx: Context) -> Launch:
    """What a user's model does today."""
    return lambda t: _both(ctx, t.q, t.k, t.cos, t.sin, t.positions)


@compiled_variants(OP, "torch.compile of the same", unsupported=odd)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape."""
    function = compiled(lambda *tensors: _both(ctx, *tensors))
    return lambda t: function(t.q, t.k, t.cos, t.sin, t.positions)


def _arguments(t: Tensors) -> tuple[Any, ...]:
    return t.q, t.k, t.cos, t.sin, t.positions, t.q_out, t.k_out


def _macros(case: Case) -> dict[str, str | int]:
    options = {
        "INTERLEAVED": int(case.values["pairs"] == "interleaved"),
        "BACKWARD": int(case.values["way"] == "backward"),
    }
    return {"SCALAR": CUDA_TYPE[case.dtype], **options}


def _kernel(ctx: Context, entry: str, **macros: int) -> cuda.Kernel:
    return ctx.kernel("rope.cu", entry, _macros(ctx.case) | macros)


@OP.variant("fused", "one kernel for both, a pair a thread; any address", unsupported=odd)
def fused(ctx: Context) -> Launch:
    """The starting point."""
    heads, half = ctx.s.Q + ctx.s.K, ctx.s.D // 2
    pairs = ctx.s.T * heads * half
    kernel = _kernel(ctx, "rope_fused")
    sizes = ctypes.c_int64(pairs), *map(ctypes.c_uint32, (ctx.s.Q, ctx.s.K, half))
    divisors = *cuda.fast_divisor(max(1, half), 64), *cuda.fast_divisor(max(1, heads), 64)
    return lambda t: kernel(blocks(pairs), BLOCK, *_arguments(t), *sizes, *divisors)


@dataclass(frozen=True, slots=True)
class RopePlan:
    """How threads share heads.

    lanes: threads that share a head. groups: of such threads, which share the heads of a token, `each` heads each.
    tokens: of a block.
    """

    lanes: int
    groups: int
    each: int
    tokens: int

    @classmethod
    def of(cls, heads: int, elements: int, itemsize: int, *, interleaved: bool, most: int = _EACH) -> Self | None:
        """The plan for `heads` heads of queries and keys together; None where heads aren't whole packs, or too long.

        most: heads that share a thread's angles at most, unless threads would be too many for a block.
        """
        size = PACK_BYTES // itemsize
        packs = 1 if interleaved else 2
        lanes = elements // (packs * size)
        if elements % (packs * size) or not lanes or not heads:
            return None
        groups = blocks(heads, most)
        while groups > 1 and lanes * groups > _MOST_THREADS:
            groups = blocks(groups, 2)
        each = blocks(heads, groups)
        if lanes * groups > _MOST_THREADS or each > _MOST_EACH:
            return None
        return cls(lanes, groups, each, max(1, BLOCK // (lanes * groups)))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return blocks(self.lanes * self.groups * self.tokens, WARP) * WARP

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"LANES": self.lanes, "GROUPS": self.groups, "EACH": self.each, "TOKENS": self.tokens}


def _plan_of(case: Case, each: int) -> RopePlan | None:
    s, is_interleaved = case.symbols, case.values["pairs"] == "interleaved"
    return RopePlan.of(s["Q"] + s["K"], s["D"], ITEMSIZE[case.dtype], interleaved=is_interleaved, most=each)


def _rule(case: Case) -> Plan | None:
    """The plan where no table has one; None where heads aren't whole packs, or too long."""
    return {"each": _EACH} if _plan_of(case, _EACH) else None


def _refuse(case: Case, plan: Plan) -> str | None:
    return None if _plan_of(case, int(plan["each"])) else "a thread has too many heads"


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    made = _plan_of(case, int(plan["each"]))
    assert made
    yield Built("rope.cu", "rope_tuned", _macros(case) | made.macros, made.threads)


@OP.variant(
    "tuned",
    "16 bytes an access; a thread has one place of up to four heads, and loads its angles once",
    unsupported=odd,
    tuning=Tuning(lambda _: {"each": _EVERY_EACH}, _rule, _refuse, _kernels),
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where heads aren't whole packs, or a tensor doesn't begin on 16 bytes."""
    fallback: Launch = fused(ctx)
    found = ctx.plan()
    plan = _plan_of(ctx.case, int(found["each"])) if found else None
    if plan is None:
        return fallback
    kernel, grid = _kernel(ctx, "rope_tuned", **plan.macros), blocks(ctx.s.T, plan.tokens)
    sizes = ctypes.c_int64(ctx.s.T), ctypes.c_uint32(ctx.s.Q), ctypes.c_uint32(ctx.s.K)

    def launch(t: Tensors) -> None:
        if aligned(t.q, t.k, t.cos, t.sin, t.q_out, t.k_out):
            kernel(grid, plan.threads, *_arguments(t), *sizes)
        else:
            fallback(t)

    return launch
