"""The backward of attention over windows: row S6. Twin of window_attention_grad.cu.

The forward is softmax(q k^T * D^-0.5 + bias + mask) v for each window and head. Inputs are what every training step
has: dout, q, k, v, bias and mask. The forward's output and statistics of its rows are no inputs: in the leanest form P
is computed anew from q and k, which are read anyway, and the sums of P * dP from P and dP. Where autograd keeps more
for a variant, such as P or the output, the variant gets this too. dbias has the bias's type, and is summed over windows
in float32.

Five products make the operations: q k^T, dout v^T, P^T dout, dS k, dS^T q. They are counted at float16's peak; the peak
of bfloat16 on tensor cores is the same within a few percent.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.collection.ops.attention import _window_attention_grad as grad
from harness.collection.ops.attention._window_attention import flex_obstacle
from harness.collection.ops.attention._window_attention_grad_plan import (
    FILE,
    STRIP,
    TUNING,
    dim_of,
    macros_of,
    macros_of_plan,
    obstacle,
    plan_of,
    shared_bytes,
)
from harness.collection.ops.chip import WARP, Chip
from harness.collection.ops.elementwise import ANY, aligned, blocks
from harness.collection.ops.rows import softmax_grad
from harness.model import Case
from harness.ops import Compile, Context, Launch, Op, Tensors, compiled, compiled_variants

if TYPE_CHECKING:
    import torch

_SUM_BLOCK = 512  # threads

OP = Op(
    "window_attention_grad",
    "gradients of softmax(q k^T / sqrt(D) + bias + mask) v for q, k, v and bias, for each window and head",
    symbols=grad.SYMBOLS,
    defaults=grad.DEFAULTS,
    choices=grad.CHOICES,
    inputs=grad.INPUTS,
    outputs=grad.OUTPUTS,
    dtypes=grad.HALVES,
    make=grad.make,
    reference=grad.reference,
    check=grad.check,
    extremes=grad.EXTREMES,
    flops={"case": "10 * W * H * T * T * D"},
    items="W",
    item="windows",
)


# ---- Baselines and peers.


_TORCH: dict[str, Any] = {"encode": grad.saved, "traffic": grad.by_products(scalings=1), "returns": True}


@OP.variant(
    "eager",
    "what autograd runs for matmul, additions, softmax and matmul, with P as it keeps it",
    role="baseline",
    rows=("S6",),
    devices=ANY,
    **_TORCH,
)
def eager(ctx: Context) -> Launch:
    """Four products, softmax's backward, a sum over windows and a scaling."""
    has_bias = ctx.s.bias == "yes"
    return lambda t: grad.backward(t.dout, (t.scaled, t.k, t.v, t.p), has_bias)


@compiled_variants(OP, "torch.compile of the same formulas, with P as autograd keeps it", **_TORCH)
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor calls the same library for products, and fuses what lies between them."""
    has_bias = ctx.s.bias == "yes"
    function = compiled(lambda dout, *kept: grad.backward(dout, kept, has_bias))
    return lambda t: function(t.dout, t.scaled, t.k, t.v, t.p)


def _no_dbias(t: Tensors) -> torch.Tensor:
    return t.bias.new_empty(t.bias.shape)


def _no_such_heads(case: Case) -> str | None:
    size = case.symbols["D"]
    return f"torch's backends of attention take heads of 8, 16, 24 and so on, not of {size}" if size % 8 else None


def _efficient_forward(ctx: Context, t: Tensors) -> dict[str, Any]:
    import torch

    whole = grad.whole_bias(ctx, t)
    found = torch.ops.aten._scaled_dot_product_efficient_attention(t.q, t.k, t.v, whole, True)
    return {"kept": (whole, *found)}


@OP.variant(
    "sdpa_efficient",
    "backward of scaled_dot_product_attention's memory-efficient backend; its dS is summed over windows apart",
    role="peer",
    rows=("S6",),
    returns=True,
    encode=_efficient_forward,
    traffic=grad.with_squares(out=1),
    unsupported=_no_such_heads,
)
def sdpa_efficient(ctx: Context) -> Launch:
    """The op that autograd calls, with the forward's output and statistics. Bias and mask come added up."""
    import torch

    has_bias = ctx.s.bias == "yes"
    wanted = [True, True, True, has_bias]

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        whole, *kept = t.kept
        function = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        dq, dk, dv, ds = function(t.dout, t.q, t.k, t.v, whole, *kept, 0.0, wanted)
        return dq, dk, dv, ds.sum(0) if has_bias else _no_dbias(t)

    return launch


def _no_gradient_of_bias(case: Case) -> str | None:
    if case.values["bias"] == "yes":
        return "cuDNN's backward of attention gives no gradient of a bias"
    return _no_such_heads(case)


def _cudnn_forward(ctx: Context, t: Tensors) -> dict[str, Any]:
    import torch

    whole = grad.whole_bias(ctx, t)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(t.q, t.k, t.v, whole, True)
    out, statistics, first_q, first_k, most_q, most_k, seed, offset, _ = found
    return {"kept": (out, statistics, seed, offset, whole, first_q, first_k, most_q, most_k)}


@OP.variant(
    "sdpa_cudnn",
    "backward of scaled_dot_product_attention's cuDNN backend",
    role="peer",
    rows=("S6",),
    returns=True,
    encode=_cudnn_forward,
    traffic=grad.with_squares(out=1),
    unsupported=_no_gradient_of_bias,
)
def sdpa_cudnn(_: Context) -> Launch:
    """The op that autograd calls, with the forward's output and statistics."""
    import torch

    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    return lambda t: (*backward(t.dout, t.q, t.k, t.v, *t.kept, 0.0, False), _no_dbias(t))


def _flex_forward(_: Context, t: Tensors) -> dict[str, Any]:
    """A forward whose graph can be walked back many times. The bias is in float32, as autocast keeps a parameter.

    torch.compile would let a first backward overwrite what a second one needs, unless it is told not to.
    """
    import torch
    from torch._functorch import config
    from torch.nn.attention.flex_attention import flex_attention

    masks, has_bias = max(1, len(t.mask)), bool(len(t.bias))

    def forward(*tensors: torch.Tensor) -> Any:
        q, k, v, bias, mask = tensors

        def added(score: Any, window: Any, head: Any, query: Any, key: Any) -> Any:
            score = score + bias[head, query, key] if has_bias else score
            return score + mask[window % masks, query, key] if len(mask) else score

        return flex_attention(q, k, v, score_mod=added)

    wanted = [tensor.detach().requires_grad_() for tensor in (t.q, t.k, t.v)]
    bias = t.bias.float().requires_grad_() if has_bias else t.bias
    with config.patch(donated_buffer=False):
        out = compiled(forward)(*wanted, bias, t.mask)
        graph = out, [*wanted, bias] if has_bias else wanted
        torch.autograd.grad(*graph, t.dout, retain_graph=True)  # compiles it
    return {"graph": graph}


@OP.variant(
    "flex",
    "backward of FlexAttention by autograd, with bias and mask as its score_mod",
    role="peer",
    rows=("S6",),
    returns=True,
    encode=_flex_forward,
    traffic=grad.with_squares(out=1),
    unsupported=flex_obstacle,
    timer="launch",
)
def flex(_: Context) -> Launch:
    """Autograd runs on streams of its own, so calls are timed one by one, not captured."""
    import torch

    def launch(t: Tensors) -> tuple[torch.Tensor, ...]:
        dq, dk, dv, *dbias = torch.autograd.grad(*t.graph, t.dout, retain_graph=True)
        return dq, dk, dv, dbias[0].to(t.bias.dtype) if dbias else _no_dbias(t)

    return launch


# ---- The text's.


@OP.variant(
    "unfused",
    "batched products by torch, softmax's backward by softmax_grad/tuned, dbias summed apart",
    role="published",
    rows=("S6",),
    encode=grad.saved,
    traffic=grad.by_products(scalings=0),
)
def unfused(ctx: Context) -> Launch:
    """The text before, with P as autograd keeps it. The scaling is part of the products."""
    import torch

    s, heads = ctx.s, ctx.s.W * ctx.s.H
    rows = replace(
        ctx.case, op=softmax_grad.OP.name, variant="tuned", shape=(("M", heads * s.T), ("N", s.T)), choices=()
    )
    softmax_backward = softmax_grad.tuned(replace(ctx, case=rows, op=softmax_grad.OP))
    # All sets of buffers share these.
    dp, ds = (torch.empty((heads, s.T, s.T), dtype=ctx.dtype, device=ctx.device) for _ in range(2))

    def launch(t: Tensors) -> None:
        dout, q, k, v, dq, dk, dv = (
            tensor.view(heads, s.T, s.D) for tensor in (t.dout, t.q, t.k, t.v, t.dq, t.dk, t.dv)
        )
        torch.bmm(dout, v.mT, out=dp)
        torch.bmm(t.p.view(heads, s.T, s.T).mT, dout, out=dv)
        softmax_backward(Tensors(dy=dp, y=t.p, dx=ds))
        if s.bias == "yes":
            torch.sum(ds.view(s.W, s.H, s.T, s.T), 0, out=t.dbias)
        torch.baddbmm(dq, ds, k, beta=0, alpha=s.D**-0.5, out=dq)
        torch.baddbmm(dk, ds.mT, q, beta=0, alpha=s.D**-0.5, out=dk)

    return launch


def _tensors(t: Tensors) -> tuple[Any, ...]:
    return t.dout, t.q, t.k, t.v, t.bias, t.mask, t.dq, t.dk, t.dv


def _access(ctx: Context) -> Callable[[Tensors], tuple[Any, Any]]:
    """Whether a kernel may load packs of all matrices, and pairs of halves of bias and mask."""

    def flags(t: Tensors) -> tuple[Any, Any]:
        pairs = ctx.s.T % 2 == 0 and not any(tensor.data_ptr() % 4 for tensor in (t.bias, t.mask))
        return ctypes.c_int32(aligned(t.dout, t.q, t.k, t.v, t.dq, t.dk, t.dv)), ctypes.c_int32(pairs)

    return flags


@OP.variant(
    "fused",
    "one kernel with bias and mask as tensor inputs, a block a window and head; a second one sums dS",
    role="published",
    rows=("S6",),
    traffic=grad.with_squares(out=0),
    unsupported=obstacle,
)
def fused(ctx: Context) -> Launch:
    """The text after, in its plainest form, on tensor cores."""
    import torch

    s, access, has_bias = ctx.s, _access(ctx), ctx.s.bias == "yes"
    kernel, summing = (
        ctx.kernel(FILE, f"window_attention_grad_{name}", macros_of(ctx.case)) for name in ("fused", "sum")
    )
    threads, shared = blocks(s.T, STRIP) * WARP, shared_bytes(s.T, dim_of(s.D), 1)
    sizes = ctypes.c_uint32(s.H), ctypes.c_uint32(s.G if s.mask == "shift" else 1)
    elements = s.H * s.T * s.T
    of_sum = ctypes.c_int64(elements), ctypes.c_int64(s.W)
    # All sets of buffers share it.
    ds = torch.empty(s.W * elements if has_bias else 0, dtype=ctx.dtype, device=ctx.device)

    def launch(t: Tensors) -> None:
        kernel(s.W * s.H, threads, *_tensors(t), ds, *sizes, *access(t), shared=shared)
        if has_bias:
            summing(blocks(elements, WARP), _SUM_BLOCK, ds, t.dbias, *of_sum)

    return launch


@OP.variant(
    "tuned",
    "blocks that stay with a head: the next window under way, bias, mask and the sum of dS in registers",
    rows=("S6",),
    unsupported=obstacle,
    tuning=TUNING,
)
def tuned(ctx: Context) -> Launch:
    """Step 2 of window_attention_grad.cu. With more than 64 tokens, sums lie in shared memory."""
    import torch

    s, access, has_bias = ctx.s, _access(ctx), ctx.s.bias == "yes"
    chosen = ctx.plan()
    assert chosen
    plan = plan_of(ctx.case, chosen)
    macros = macros_of(ctx.case) | macros_of_plan(plan, int(chosen["sharers"]))
    kernel, total = (ctx.kernel(FILE, f"window_attention_grad_{name}", macros) for name in ("tuned", "total"))
    parts = plan.parts(s.W, s.H, Chip.current().multiprocessors)
    counts = s.W, s.H, s.G if s.mask == "shift" else 1, parts
    sizes = tuple(map(ctypes.c_uint32, counts))
    elements = 4 * plan.groups * s.H
    # All sets of buffers share it.
    partial = torch.empty(parts * elements if has_bias else 0, dtype=torch.float32, device=ctx.device)

    def launch(t: Tensors) -> None:
        kernel(parts * s.H, plan.threads, *_tensors(t), partial, *sizes, *access(t), shared=plan.shared)
        if has_bias:
            total(elements // (4 * WARP), _SUM_BLOCK, partial, t.dbias, sizes[1], sizes[3])

    return launch
