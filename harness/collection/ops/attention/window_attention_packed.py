"""Attention over windows between two matrix products, for inference: row S9. Twin of window_attention_packed.cu.

qkv is (W, T, 3, H, D), as the product with the weights of q, k and v leaves it; out is (W, T, H * D), as the
projection takes it. The bias of two tokens of a window is a row of `table` ((2 * side - 1)^2, H), by their distance.
Masks are as in window_attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.attention import _window_attention_kernels as ours
from harness.collection.ops.attention import _window_attention_tuning as plans
from harness.collection.ops.chip import Chip
from harness.collection.ops.elementwise import ANY
from harness.model import Case, Traffic, Work
from harness.ops import Compile, Context, Expected, Launch, Op, Symbols, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

_INDEX_BYTES = 8


def _tokens(s: Symbols) -> int:
    return int(s["side"]) ** 2


def _qkv_shape(s: Symbols) -> tuple[int, ...]:
    return s["W"], _tokens(s), 3, s["H"], s["D"]


def _out_shape(s: Symbols) -> tuple[int, ...]:
    return s["W"], _tokens(s), s["H"] * s["D"]


def _table_shape(s: Symbols) -> tuple[int, ...]:
    return (2 * s["side"] - 1) ** 2, s["H"]


def _bias_shape(s: Symbols) -> tuple[int, ...]:
    return s["H"], _tokens(s), _tokens(s)


def _mask_shape(s: Symbols) -> tuple[int, ...]:
    return shared.masks(s), _tokens(s), _tokens(s)


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers, and Swin's mask."""
    s = ctx.case.values
    drawn = {"qkv": shared.random(ctx, *_qkv_shape(s)), "table": shared.random(ctx, *_table_shape(s))}
    return {**drawn, "mask": shared.made_mask(ctx, _tokens(s))}


def relative_index(side: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """The row of the table for each query and key, (T * T), by how far the key lies up and to the left."""
    import torch

    token = torch.arange(side * side, device=device)
    row, column = token // side, token % side
    down, right = row[:, None] - row + side - 1, column[:, None] - column + side - 1
    return (down * (2 * side - 1) + right).flatten()


def looked_up(table: torch.Tensor, index: torch.Tensor, tokens: int) -> torch.Tensor:
    """The bias (H, T, T), contiguous."""
    return table[index].view(tokens, tokens, -1).permute(2, 0, 1).contiguous()


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the output must be, from a reference in float64."""
    s, before = ctx.s, t.before
    tokens = s.side**2
    q, k, v = before.qkv.permute(2, 0, 3, 1, 4)
    bias = looked_up(before.table, relative_index(s.side, before.table.device), tokens)
    got = t.out.view(s.W, tokens, s.H, s.D).transpose(1, 2)
    return shared.expected(ctx, got, Tensors(q=q, k=k, v=v), bias, before.mask if len(before.mask) else None)


def work(s: Symbols, size: int) -> Work:
    """Qkv, the table and the masks read once, the output written once, and the operations of both products."""
    tokens, data = _tokens(s), s["W"] * _tokens(s) * s["H"] * s["D"]
    added = (2 * s["side"] - 1) ** 2 * s["H"] + shared.masks(s) * tokens**2
    return shared.work(s, tokens, Work((3 * data + added) * size, data * size))


_QKV, _TABLE, _MASK = Tensor("qkv", _qkv_shape), Tensor("table", _table_shape), Tensor("mask", _mask_shape)
_AHEAD = (_QKV, Tensor("bias", _bias_shape), _MASK)
OP = Op(
    "window_attention_packed",
    "window_attention of q, k, v as one matrix product leaves them, heads merged on the way out",
    symbols={
        "W": "windows",
        "H": "heads",
        "side": "tokens of a window's side: a window has side * side tokens",
        "D": "size of a head",
        "G": "windows of an image, each with a mask of its own; 1 unless told",
    },
    defaults={"G": "1"},
    choices={"mask": shared.MASK},
    inputs=(_QKV, _TABLE, _MASK),
    outputs=(Tensor("out", _out_shape),),
    dtypes=shared.DTYPES,
    make=make,
    check=check,
    extremes=shared.extremes(2.0**4, {"qkv": 0, "table": 1}, "qkv"),
    work=work,
    items="W",
    item="windows",
)


def _by_torch(qkv: torch.Tensor, table: torch.Tensor, mask: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    bias = looked_up(table, index, qkv.shape[1])
    out = shared.by_torch(q, k, v, bias, mask if len(mask) else None)
    return out.transpose(1, 2).flatten(2)


@OP.variant(
    "eager",
    "look-up, permute, and window_attention/eager between transposes",
    role="baseline",
    rows=("S9",),
    devices=ANY,
    returns=True,
)
def eager(ctx: Context) -> Launch:
    """What Swin Transformer does between its two linear layers. It keeps the index."""
    index = relative_index(ctx.s.side, ctx.device)
    return lambda t: (_by_torch(t.qkv, t.table, t.mask, index),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape, around the library's matrix products."""
    index, function = relative_index(ctx.s.side, ctx.device), compiled(_by_torch)
    return lambda t: (function(t.qkv, t.table, t.mask, index),)


# ---- Our kernels.


def sizes_of(case: Case) -> ours.AttentionSizes:
    """The case's sizes as our kernels take them."""
    s = case.values
    w, h, d = (int(s[name]) for name in ("W", "H", "D"))
    return ours.AttentionSizes(w, h, _tokens(s), d, bias=True, masks=shared.masks(s), packed=True)


def _obstacle(case: Case) -> str | None:
    return sizes_of(case).obstacle()


def _look_up(ctx: Context, t: Tensors) -> dict[str, Any]:
    """The bias, which inference needs to look up once for all calls. This isn't timed."""
    return {"bias": looked_up(t.table, relative_index(ctx.s.side, ctx.device), ctx.s.side**2)}


def _unfused_traffic(s: Symbols, size: int) -> Traffic:
    """Beside the work, q, k and v are copied, then the output; scores are moved four times, and the bias four times."""
    once, data = work(s, size), s["W"] * _tokens(s) * s["H"] * s["D"] * size
    scores, bias = s["W"] * s["H"] * _tokens(s) ** 2 * size, s["H"] * _tokens(s) ** 2 * size
    read = once.read + 4 * data + 2 * scores + 2 * bias + _tokens(s) ** 2 * _INDEX_BYTES
    return Traffic(read, once.written + 4 * data + 2 * scores + 2 * bias)


_OURS: dict[str, Any] = {"rows": ("S9",), "unsupported": _obstacle}
_FUSED: dict[str, Any] = {**_OURS, "inputs": _AHEAD, "encode": _look_up}


@OP.variant(
    "unfused",
    "look-up in each call, transposes, batched GEMM, softmax, batched GEMM, transpose",
    role="published",
    traffic=_unfused_traffic,
    **_OURS,
)
def unfused(ctx: Context) -> Launch:
    """The text before. Look-up, transposes and products are torch's kernels, the softmax is ours."""
    import torch

    sizes = sizes_of(ctx.case)
    index = relative_index(ctx.s.side, ctx.device)
    tokens, rows = sizes.tokens, (sizes.items, sizes.tokens, sizes.head)
    # All sets of buffers share these.
    scores = torch.empty(sizes.items, tokens, tokens, dtype=ctx.dtype, device=ctx.device)
    apart = torch.empty(3, sizes.windows, sizes.heads, tokens, sizes.head, dtype=ctx.dtype, device=ctx.device)
    result = torch.empty(rows, dtype=ctx.dtype, device=ctx.device)
    q, k, v = (part.view(rows) for part in apart)
    softmax = ours.Kernels(ctx, sizes).softmax(scores)
    ordered = result.view(apart.shape[1:]).transpose(1, 2)

    def launch(t: Tensors) -> None:
        bias = looked_up(t.table, index, tokens)
        apart.copy_(t.qkv.permute(2, 0, 3, 1, 4))
        torch.bmm(q, k.transpose(1, 2), out=scores)
        softmax(bias, t.mask)
        torch.bmm(scores, v, out=result)
        t.out.view(ordered.shape).copy_(ordered)

    return launch


@OP.variant("scalar", "one kernel, a warp a row, no tensor cores", **_FUSED)
def scalar(ctx: Context) -> Launch:
    """Any sizes at any address, as long as a window and a head fit into shared memory."""
    kernel = ours.Kernels(ctx, sizes_of(ctx.case)).scalar()
    return lambda t: kernel(t.qkv, t.bias, t.mask, t.out)


@OP.variant("fused", "one kernel, a window and a head a block, tensor cores", role="published", **_FUSED)
def fused(ctx: Context) -> Launch:
    """The text after, in its plainest form. `scalar` runs where it does in `tuned`."""
    sizes = sizes_of(ctx.case)
    kernel = ours.Kernels(ctx, sizes).tiles(ours.TilePlan.plain(sizes, Chip.current()))
    return lambda t: kernel(t.qkv, t.bias, t.mask, t.out)


@OP.variant(
    "tuned",
    "blocks that stay, bias and mask in shared memory, the next window under way",
    tuning=plans.tuning(sizes_of),
    **_FUSED,
)
def tuned(ctx: Context) -> Launch:
    """`scalar` runs at unaligned addresses, for more than 256 tokens, and for heads of odd sizes or beyond 64."""
    sizes = sizes_of(ctx.case)
    kernel = ours.Kernels(ctx, sizes).tiles(plans.plan_of(ctx, sizes))
    return lambda t: kernel(t.qkv, t.bias, t.mask, t.out)
