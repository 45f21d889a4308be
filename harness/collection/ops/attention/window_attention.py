"""Attention over windows, softmax(q k^T / sqrt(D) + bias + mask) v: row S6. Twin of window_attention.cu.

q, k, v and out are (W, H, T, D); bias is (H, T, T), one for all windows; mask is (G, T, T), and window w takes mask
w % G. A query whose keys are all at -infinity gives NaN, as torch's softmax does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.collection.ops.attention import _window_attention as shared
from harness.collection.ops.attention import _window_attention_kernels as ours
from harness.collection.ops.attention import _window_attention_tuning as plans
from harness.collection.ops.attention._window_attention import flex_obstacle
from harness.collection.ops.chip import Chip
from harness.collection.ops.elementwise import ANY
from harness.model import Case, Traffic, Work
from harness.ops import (
    Choice,
    Compile,
    Context,
    Expected,
    Launch,
    Op,
    Symbols,
    Tensor,
    Tensors,
    compiled,
    compiled_variants,
)

if TYPE_CHECKING:
    import torch
    from torch.nn.attention import SDPBackend

_PACK = 8  # elements: SDPA wants rows of the mask, and heads, to be whole packs


def _bias_shape(s: Symbols) -> tuple[int, ...]:
    return (s["H"] if s["bias"] == "yes" else 0, s["T"], s["T"])


def _mask_shape(s: Symbols) -> tuple[int, ...]:
    return shared.masks(s), s["T"], s["T"]


def make(ctx: Context) -> dict[str, Any]:
    """Normal random numbers, and Swin's mask."""
    s = ctx.s
    drawn = {name: shared.random(ctx, s.W, s.H, s.T, s.D) for name in ("q", "k", "v")}
    bias = shared.random(ctx, *_bias_shape(ctx.case.values))
    return {**drawn, "bias": bias, "mask": shared.made_mask(ctx, s.T)}


def check(ctx: Context, t: Tensors) -> Iterator[Expected]:
    """What the output must be, from a reference in float64."""
    return shared.expected(ctx, t.out, t.before, *_added(t.before))


def work(s: Symbols, size: int) -> Work:
    """Every tensor once, and the operations of both products."""
    data = s["W"] * s["H"] * s["T"] * s["D"]
    added = (_bias_shape(s)[0] + shared.masks(s)) * s["T"] ** 2
    return shared.work(s, s["T"], Work((3 * data + added) * size, data * size))


_ROWS = ("W", "H", "T", "D")
OP = Op(
    "window_attention",
    "out = softmax(q k^T / sqrt(D) + bias + mask) v for each window and head",
    symbols={
        "W": "windows",
        "H": "heads",
        "T": "tokens of a window",
        "D": "size of a head",
        "G": "windows of an image, each with a mask of its own; 1 unless told",
    },
    defaults={"G": "1"},
    choices={"bias": Choice("whether a bias (H, T, T) is added to the scores", ("yes", "no")), "mask": shared.MASK},
    inputs=(*(Tensor(name, _ROWS) for name in "qkv"), Tensor("bias", _bias_shape), Tensor("mask", _mask_shape)),
    outputs=(Tensor("out", _ROWS),),
    dtypes=shared.DTYPES,
    make=make,
    check=check,
    extremes=shared.extremes(2.0**4, {"q": 0, "k": 0, "v": 0}, "v"),
    work=work,
    items="W",
    item="windows",
)


def _added(t: Tensors) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Bias and mask; None for each that the case doesn't have."""
    return t.bias if len(t.bias) else None, t.mask if len(t.mask) else None


# ---- What torch has.


@OP.variant("eager", "matmul, add, add, softmax, matmul", role="baseline", rows=("S6",), devices=ANY, returns=True)
def eager(_: Context) -> Launch:
    """What Swin Transformer does."""
    return lambda t: (shared.by_torch(t.q, t.k, t.v, *_added(t)),)


@compiled_variants(OP, "torch.compile of the same")
def compile_(_: Context, compiled: Compile) -> Launch:
    """Inductor's kernels for exactly this shape, around the library's matrix products."""
    function = compiled(shared.by_torch)
    return lambda t: (function(t.q, t.k, t.v, *_added(t)),)


def _images(s: Symbols) -> tuple[int, int, int, int]:
    """Shape in which one mask serves all images: their windows are heads of a batch of images."""
    windows = max(1, shared.masks(s))
    return s["W"] // windows, windows * s["H"], s["T"], s["D"]


def _merged(ctx: Context, t: Tensors) -> dict[str, Any]:
    """Bias and mask as SDPA takes them: one tensor (1, G * H, T, T).

    Rows begin on 16 bytes, else torch makes such a copy in each call. This isn't timed: the mask never changes, and
    while a model isn't trained the bias doesn't either.
    """
    import torch

    bias, mask = _added(t)
    if bias is None and mask is None:
        return {"merged": None}
    tokens, heads = ctx.s.T, ctx.s.H
    both = torch.zeros(1, heads, tokens, tokens, dtype=ctx.dtype, device=ctx.device)
    both = both + bias if bias is not None else both
    both = both + mask.unsqueeze(1) if mask is not None else both
    room = torch.zeros(*both.shape[:-1], -(-tokens // _PACK) * _PACK, dtype=ctx.dtype, device=ctx.device)
    room[..., :tokens] = both
    return {"merged": room.flatten(0, 1).unsqueeze(0)[..., :tokens]}


def _as_windows(ctx: Context, t: Tensors) -> dict[str, Any]:
    s = ctx.s
    return {"out": t.out.reshape(s.W, s.H, s.T, s.D)}


_SDPA: dict[str, Any] = {
    "role": "peer",
    "returns": True,
    "inputs": OP.inputs,
    "outputs": (Tensor("out", _images),),
    "encode": _merged,
    "decode": _as_windows,
}


def by_sdpa(ctx: Context, backend: SDPBackend) -> Launch:
    """Torch's attention by one of its backends. Bias and mask are merged ahead; windows of an image count as heads.

    The backends take heads of whole packs, so other heads, such as 30, are filled with zeros in each call. A user who
    owns the projection before could fill its weights once.
    """
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import pad, scaled_dot_product_attention

    shape, size = _images(ctx.case.values), ctx.s.D
    room = -size % _PACK

    def launch(t: Tensors) -> tuple[torch.Tensor]:
        q, k, v = (pad(x.view(shape), (0, room)) if room else x.view(shape) for x in (t.q, t.k, t.v))
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(q, k, v, attn_mask=t.merged, scale=size**-0.5)
        return (out[..., :size] if room else out,)

    return launch


@OP.variant("sdpa_efficient", "torch's SDPA, memory-efficient backend; bias and mask merged ahead", **_SDPA)
def sdpa_efficient(ctx: Context) -> Launch:
    """The backend that takes any mask."""
    from torch.nn.attention import SDPBackend

    return by_sdpa(ctx, SDPBackend.EFFICIENT_ATTENTION)


@OP.variant("sdpa_cudnn", "torch's SDPA, cuDNN's backend; bias and mask merged ahead", **_SDPA)
def sdpa_cudnn(ctx: Context) -> Launch:
    """The backend that takes masks as a bias."""
    from torch.nn.attention import SDPBackend

    return by_sdpa(ctx, SDPBackend.CUDNN_ATTENTION)


@OP.variant(
    "flex",
    "FlexAttention, compiled, bias and mask in its score_mod",
    role="peer",
    returns=True,
    unsupported=flex_obstacle,
)
def flex(ctx: Context) -> Launch:
    """Torch's attention that compiles what is done to a score."""
    function = compiled(flexible(ctx))
    return lambda t: (function(t.q, t.k, t.v, t.bias, t.mask),)


def flexible(ctx: Context) -> Callable[..., Any]:
    """The function of q, k, v, bias and mask that `flex` compiles."""
    from torch.nn.attention.flex_attention import flex_attention

    bias_added, count = ctx.s.bias == "yes", shared.masks(ctx.case.values)

    def attend(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
        def changed(score: Any, window: Any, head: Any, query: Any, key: Any) -> Any:
            if bias_added:
                score = score + bias[head, query, key]
            return score + mask[window % count, query, key] if count else score

        return flex_attention(q, k, v, score_mod=changed)

    return attend


# ---- Our kernels.


def sizes_of(case: Case) -> ours.AttentionSizes:
    """The case's sizes as our kernels take them."""
    s = case.values
    w, h, t, d = (int(s[name]) for name in _ROWS)
    return ours.AttentionSizes(w, h, t, d, bias=s["bias"] == "yes", masks=shared.masks(s), packed=False)


def _obstacle(case: Case) -> str | None:
    return sizes_of(case).obstacle()


def _unfused_traffic(s: Symbols, size: int) -> Traffic:
    """Scores are written by the first product, read and written by the softmax, and read by the second product."""
    once, scores = work(s, size), s["W"] * s["H"] * s["T"] ** 2 * size
    return Traffic(once.read + 2 * scores, once.written + 2 * scores)


_OURS: dict[str, Any] = {"rows": ("S6",), "unsupported": _obstacle}


@OP.variant(
    "unfused",
    "batched GEMM, our softmax with bias and mask, batched GEMM",
    role="published",
    traffic=_unfused_traffic,
    **_OURS,
)
def unfused(ctx: Context) -> Launch:
    """The text before, with scale, bias, mask and softmax in one kernel already."""
    import torch

    sizes = sizes_of(ctx.case)
    rows, square = (sizes.items, sizes.tokens, sizes.head), (sizes.items, sizes.tokens, sizes.tokens)
    # All sets of buffers share the scores.
    scores = torch.empty(square, dtype=ctx.dtype, device=ctx.device)
    softmax = ours.Kernels(ctx, sizes).softmax(scores)

    def launch(t: Tensors) -> None:
        torch.bmm(t.q.view(rows), t.k.view(rows).transpose(1, 2), out=scores)
        softmax(t.bias, t.mask)
        torch.bmm(scores, t.v.view(rows), out=t.out.view(rows))

    return launch


@OP.variant("scalar", "one kernel, a warp a row, no tensor cores", **_OURS)
def scalar(ctx: Context) -> Launch:
    """Any sizes at any address, as long as a window and a head fit into shared memory."""
    kernel = ours.Kernels(ctx, sizes_of(ctx.case)).scalar()
    return lambda t: kernel(t.q, t.k, t.v, t.bias, t.mask, t.out)


@OP.variant("fused", "one kernel, a window and a head a block, tensor cores", role="published", **_OURS)
def fused(ctx: Context) -> Launch:
    """The text after, in its plainest form. `scalar` runs where it does in `tuned`."""
    sizes = sizes_of(ctx.case)
    kernel = ours.Kernels(ctx, sizes).tiles(ours.TilePlan.plain(sizes, Chip.current()))
    return lambda t: kernel(t.q, t.k, t.v, t.bias, t.mask, t.out)


@OP.variant(
    "tuned",
    "blocks that stay, bias and mask in shared memory, the next window under way",
    tuning=plans.tuning(sizes_of),
    **_OURS,
)
def tuned(ctx: Context) -> Launch:
    """`scalar` runs at unaligned addresses, for more than 256 tokens, and for heads of odd sizes or beyond 64."""
    sizes = sizes_of(ctx.case)
    kernel = ours.Kernels(ctx, sizes).tiles(plans.plan_of(ctx, sizes))
    return lambda t: kernel(t.q, t.k, t.v, t.bias, t.mask, t.out)
