"""Attention of one new token of each sequence to all that are kept: beyond the texts. Twin of decode_attention.cu.

q: (B, H, D), keys, values: (B, G, T, D): sequences, heads of queries, heads of keys and values, tokens, elements of a
head. H / G heads of queries share a head of keys and values.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.collection.ops.chip import RESERVED, WARP, Chip
from harness.collection.ops.elementwise import ANY, BLOCK, CUDA_TYPE, PACK_BYTES, aligned, blocks
from harness.model import Case, Traffic, Work
from harness.ops import (
    Built,
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

_KEYS, _HEADS, _MOST_PARTS = 16, 8, 128  # as in the kernel
_STEPS = 2  # of 16 keys that each warp of a part has at least
_MOST_HEAD, _MOST_IN_REGISTERS = 256, 128  # elements of a head, for `fused` and `tuned`
_MANY = 1024  # tokens of heads of keys, for a multiprocessor: four steps or more for each warp of the rule
_SHORT = _STEPS * 8 * _KEYS  # tokens that are one part for eight warps
_USUAL: Plan = {"warps": 4, "ahead": 2, "blocks": 3}
_HALF = 2  # bytes
_STATIC = _HEADS * _MOST_PARTS * 4 + 128  # bytes of shared memory, beside sums and extents of warps
_REASON = "scores are multiples of it, and their powers beyond what float32 tells apart"


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """The result in float64, sequence by sequence.

    Shares of tokens are rounded before they are multiplied with values: together twice the root of the terms' squares,
    in units in the last place. The result is rounded once more, and scores are added in float32 in any order.
    """
    import torch

    unit, before, s = torch.finfo(ctx.dtype).eps, t.before, ctx.s
    float32 = torch.finfo(torch.float32).eps
    for b in range(s.B):
        q, k, v = (one[b].double() for one in (before.q, before.keys, before.values))
        q = q.view(s.G, -1, s.D)
        scores = q @ k.mT * s.D**-0.5
        shares = torch.softmax(scores, -1)
        want = shares @ v
        lost = float32 * (8 + scores.abs().amax(-1, keepdim=True))
        terms = 2 * unit * (shares.square() @ v.square()).sqrt() + lost * (shares @ v.abs())
        want, allowed = (one.view(1, s.H, s.D) for one in (want, terms + unit * want.abs()))
        yield Expected("y", t.y[b : b + 1], want, allowed, b * s.H * s.D)


def work(s: Symbols, size: int) -> Work:
    """Queries, keys and values are read once; each query is multiplied with each key, each share with each value."""
    kept, y = 2 * s["B"] * s["G"] * s["T"] * s["D"], s["B"] * s["H"] * s["D"]
    return Work((kept + y) * size, y * size, flops=(("case", 4 * y * s["T"]),))


OP = Op(
    "decode_attention",
    "attention of one new token of each sequence to all tokens that are kept",
    symbols={
        "B": "sequences",
        "H": "heads of queries",
        "G": "heads of keys, and of values",
        "T": "tokens that are kept",
        "D": "elements of a head",
    },
    dtypes=("bfloat16", "float16"),
    inputs=(
        Tensor("q", ("B", "H", "D")),
        Tensor("keys", ("B", "G", "T", "D")),
        Tensor("values", ("B", "G", "T", "D")),
    ),
    outputs=(Tensor("y", ("B", "H", "D")),),
    check=check,
    extremes=Extremes(
        exempt={
            **dict.fromkeys(("smallest", "denormal"), "a library may take such a number for zero"),
            "values.infinity": "a share of it that a half can't tell from 0 makes NaN of it",
            "values.masked": "as for infinity",
            "values.minus_infinity": "as for infinity",
        },
        largest={"q": 8.0, "keys": 8.0, "float16": 2.0**8, "bfloat16": 2.0**50},
        why=_REASON,
    ),
    work=work,
    items="B",
    item="tokens",
)


def uneven(case: Case) -> str | None:
    """Why heads of queries can't share heads of keys; None if they can."""
    return "heads of keys must divide heads of queries" if case.symbols["H"] % case.symbols["G"] else None


def _too_long(case: Case) -> str | None:
    if case.symbols["D"] > _MOST_HEAD:
        return f"for heads of up to {_MOST_HEAD} elements"
    return uneven(case)


def _by_torch(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    from torch.nn import functional

    grouped = q.shape[1] != keys.shape[1]
    return functional.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=grouped)[:, :, 0]


def _products(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    import torch

    grouped = q.unflatten(1, (keys.shape[1], -1))
    return (torch.softmax(grouped @ keys.mT * q.shape[-1] ** -0.5, -1) @ values).flatten(1, 2)


def _with_scores(s: Symbols, size: int) -> Traffic:
    """Scores are written, multiplied, made shares of, and read: three times there and back."""
    needed, scores = work(s, size), s["B"] * s["H"] * s["T"] * size
    return Traffic(needed.read + 3 * scores, needed.written + 3 * scores)


@OP.variant(
    "eager",
    "two products and a softmax",
    role="baseline",
    devices=ANY,
    returns=True,
    traffic=_with_scores,
    unsupported=uneven,
)
def eager(_: Context) -> Launch:
    """The model as it is written."""
    return lambda t: (_products(t.q, t.keys, t.values),)


@OP.variant(
    "sdpa", "torch's scaled_dot_product_attention", role="baseline", devices=ANY, returns=True, unsupported=uneven
)
def sdpa(_: Context) -> Launch:
    """What a user calls today, with torch's own choice of a kernel."""
    return lambda t: (_by_torch(t.q, t.keys, t.values),)


@compiled_variants(OP, "torch.compile of eager", unsupported=uneven)
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor fuses the softmax, and may write the products."""
    function = compiled(_products)
    return lambda t: (function(t.q, t.keys, t.values),)


def scale_of(head: int) -> ctypes.c_float:
    """What scores are multiplied by, so that powers of 2 make the softmax."""
    return ctypes.c_float(head**-0.5 * math.log2(math.e))


def _macros(case: Case) -> dict[str, str | int]:
    return {"SCALAR": CUDA_TYPE[case.dtype], "HEAD": case.symbols["D"]}


@OP.variant("fused", "one kernel, a warp has a head and takes a token at a time; any address", unsupported=_too_long)
def fused(ctx: Context) -> Launch:
    """The starting point."""
    s = ctx.s
    kernel = ctx.kernel("decode_attention.cu", "decode_attention_fused", _macros(ctx.case))
    grid, counts = blocks(s.B * s.H, BLOCK // WARP), map(ctypes.c_uint32, (s.B, s.H, s.G, s.T))
    numbers = *counts, scale_of(s.D)
    return lambda t: kernel(grid, BLOCK, t.q, t.keys, t.values, t.y, *numbers)


@dataclass(frozen=True, slots=True)
class TokenParts:
    """How blocks and warps share tokens.

    warps: of a block. ahead: steps of 16 tokens that a warp has under way. blocks: of a multiprocessor at a time.
    count: parts of a sequence. tokens: of a part.
    """

    warps: int
    ahead: int
    blocks: int
    count: int
    tokens: int

    @classmethod
    def of(cls, s: Symbols, plan: Plan, chip: Chip) -> Self:
        """The plan with as many parts as fill the GPU once, each with a few steps for each of its warps."""
        warps, ahead, at_once = (int(plan[name]) for name in ("warps", "ahead", "blocks"))
        groups = s["B"] * s["G"] * _blocks_of_heads(s)
        most = chip.multiprocessors * at_once // groups
        count = max(1, min(most, blocks(s["T"], _STEPS * warps * _KEYS), _MOST_PARTS))
        tokens = blocks(blocks(s["T"], count), _KEYS) * _KEYS
        return cls(warps, ahead, at_once, blocks(s["T"], tokens), tokens)

    def grid(self, s: Symbols) -> tuple[int, int]:
        """Blocks: a part of a head of keys each, and then for each eight queries of such a head."""
        return s["B"] * s["G"] * self.count, _blocks_of_heads(s)

    def memory(self, s: Symbols, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Sums and extents of parts, and zeros to count parts that have ended, which a launch leaves as zeros."""
        import torch

        heads = s["B"] * s["H"] * self.count if self.count > 1 else 0
        sums = torch.empty(heads * s["D"], dtype=torch.float32, device=device)
        extents = torch.empty(heads * 2, dtype=torch.float32, device=device)
        return sums, extents, torch.zeros(s["B"] * s["G"] * _blocks_of_heads(s), dtype=torch.int32, device=device)

    def shared(self, head: int) -> int:
        """Dynamic bytes of shared memory: steps that are under way or there."""
        return self.warps * self.ahead * 2 * _KEYS * head * _HALF

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""
        return {"WARPS": self.warps, "AHEAD": self.ahead, "BLOCKS": self.blocks}


def _blocks_of_heads(s: Symbols) -> int:
    """Blocks that share the queries of a head of keys: eight each."""
    return blocks(s["H"] // s["G"], _HEADS)


def rule(s: Symbols, chip: Chip) -> Plan | None:
    """The plan where no table has one; None where heads aren't whole packs or are too long, or for no tokens.

    For heads of up to 64 elements: one sequence has few parts where there is room, since parts meet in memory. A
    short context is one part. A longer one has a part for each 256 tokens, but at most one for each multiprocessor.
    More parts were slower on an H200, in trials that no committed run has. Where a multiprocessor has many tokens of
    several sequences, 128 KB of them are under way in place of 96 KB. Longer heads have 128 KB anyway.
    """
    head = s["D"]
    if head % (PACK_BYTES // _HALF) or head > _MOST_IN_REGISTERS or not s["B"] * s["G"] * s["T"]:
        return None
    if head > 64:
        return _with_room(s, {"warps": 4, "ahead": 2, "blocks": 2}, chip)
    if s["B"] == 1:
        plan: Plan = (
            {"warps": 8, "ahead": 1, "blocks": 2} if s["T"] <= _SHORT else {"warps": 8, "ahead": 3, "blocks": 1}
        )
    else:
        many = s["B"] * s["G"] * s["T"] >= _MANY * chip.multiprocessors
        plan = {"warps": 4, "ahead": 4, "blocks": 2} if many else _USUAL
    return plan if _has_room(s, plan, chip) else _with_room(s, _USUAL, chip)


def _with_room(s: Symbols, plan: Plan, chip: Chip) -> Plan:
    """The plan with so many blocks of a multiprocessor as it has shared memory for, at least one."""
    blocks_each = range(int(plan["blocks"]), 0, -1)
    found = ({**plan, "blocks": count} for count in blocks_each)
    return next((one for one in found if _has_room(s, one, chip)), {**plan, "blocks": 1})


def _has_room(s: Symbols, plan: Plan, chip: Chip) -> bool:
    """Whether a multiprocessor has shared memory for the blocks of a plan."""
    parts = TokenParts.of(s, plan, chip)
    static = _STATIC + parts.warps * _HEADS * (blocks(s["D"], 16) * 16 + 6) * 4
    return parts.shared(s["D"]) + static <= (chip.shared + RESERVED) // parts.blocks - RESERVED


def _rule(case: Case) -> Plan | None:
    return rule(case.symbols, Chip.current())


def _refuse(case: Case, plan: Plan) -> str | None:
    if int(plan["warps"]) * int(plan["blocks"]) > 16:
        return "a multiprocessor has too few registers"
    has_room = _has_room(case.symbols, plan, Chip.current())
    return None if has_room else "a multiprocessor has too little shared memory"


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    parts = TokenParts.of(case.symbols, plan, Chip.current())
    macros = _macros(case) | parts.macros
    shared = parts.shared(case.symbols["D"])
    yield Built("decode_attention.cu", "decode_attention_tuned", macros, parts.warps * WARP, shared)


@OP.variant(
    "tuned",
    "tensor cores multiply, all queries of a head of keys at a time; parts of a sequence meet in memory",
    unsupported=_too_long,
    tuning=Tuning(lambda _: {"warps": (4, 8), "ahead": (1, 2, 3, 4), "blocks": (1, 2, 3, 4)}, _rule, _refuse, _kernels),
)
def tuned(ctx: Context) -> Launch:
    """`fused` runs where heads aren't whole packs, or too long, or a tensor doesn't begin on 16 bytes."""
    fallback: Launch = fused(ctx)
    plan = ctx.plan()
    if plan is None:
        return fallback
    s = ctx.s
    parts = TokenParts.of(ctx.case.symbols, plan, Chip.current())
    kernel = ctx.kernel("decode_attention.cu", "decode_attention_tuned", _macros(ctx.case) | parts.macros)
    memory = parts.memory(ctx.case.symbols, ctx.device)
    grid, shared = parts.grid(ctx.case.symbols), parts.shared(s.D)
    numbers = *map(ctypes.c_uint32, (s.H, s.G, s.T, parts.count, parts.tokens)), scale_of(s.D)

    def launch(t: Tensors) -> None:
        if aligned(t.q, t.keys, t.values, t.y):
            kernel(grid, parts.warps * WARP, t.q, t.keys, t.values, t.y, *memory, *numbers, shared=shared)
        else:
            fallback(t)

    return launch
