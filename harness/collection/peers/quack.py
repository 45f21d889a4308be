"""QuACK, by Dao AI Lab: kernels in the CuTe DSL for Hopper and later. Its functions as in version 0.6.5."""

from __future__ import annotations

from typing import Any

from harness.collection.ops.llm import cross_entropy, cross_entropy_grad, rope
from harness.collection.ops.llm._cross_entropy import IGNORED
from harness.collection.ops.rows import (
    add_rms_norm,
    add_rms_norm_grad,
    layer_norm,
    layer_norm_grad,
    rms_norm,
    rms_norm_grad,
    softmax,
    softmax_grad,
)
from harness.collection.ops.rows._norm import EPS, X
from harness.collection.peers._library import PeerLibrary
from harness.model import Case
from harness.ops import Context, Launch, Tensor, Tensors

LIBRARY = PeerLibrary("QuACK", "quack", "quack-kernels>=0.6")
_HOPPER = LIBRARY.obstacle(clusters=True)
_WHOLE_PACKS = LIBRARY.obstacle(clusters=True, multiple=16)
_OF_LOGITS = LIBRARY.obstacle(row="V", clusters=True)
_SAID = "QuACK: rows by a warp, a block or a cluster, in the CuTe DSL"


@softmax.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_WHOLE_PACKS)
def softmax_quack(_: Context) -> Launch:
    """Its forward."""
    from quack.softmax import softmax_fwd

    return lambda t: (softmax_fwd(t.x),)


@softmax_grad.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_WHOLE_PACKS)
def softmax_grad_quack(_: Context) -> Launch:
    """Its backward."""
    from quack.softmax import softmax_bwd

    return lambda t: (softmax_bwd(t.dy, t.y),)


@rms_norm.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_HOPPER)
def rms_norm_quack(_: Context) -> Launch:
    """Its forward, which stores rstd for the backward."""
    from quack.rmsnorm import rmsnorm_fwd

    def launch(t):  # type: ignore[no-untyped-def]
        y, _, rstd = rmsnorm_fwd(t.x, t.gamma, eps=EPS, store_rstd=True)
        return y, rstd

    return launch


@rms_norm_grad.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_HOPPER)
def rms_norm_grad_quack(_: Context) -> Launch:
    """Its backward; the sums of columns are added by torch."""
    from quack.rmsnorm import rmsnorm_bwd

    return lambda t: rmsnorm_bwd(t.x, t.gamma, t.dy, t.rstd)[:2]


def _in_floats(_: Context, t: Tensors) -> dict[str, Any]:
    return {"x": t.x, "gamma": t.gamma.float(), "beta": t.beta.float()}


@layer_norm.OP.variant(
    "quack",
    f"{_SAID}; it takes gamma and beta in float32, widened ahead",
    role="peer",
    returns=True,
    inputs=(X, Tensor("gamma", ("N",), "float32"), Tensor("beta", ("N",), "float32")),
    encode=_in_floats,
    unsupported=_HOPPER,
)
def layer_norm_quack(_: Context) -> Launch:
    """Its forward, with both statistics."""
    from quack.rmsnorm import layernorm_fwd

    def launch(t):  # type: ignore[no-untyped-def]
        y, rstd, mean = layernorm_fwd(t.x, t.gamma, t.beta, EPS, return_rstd=True, return_mean=True)
        return y, mean, rstd

    return launch


@layer_norm_grad.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_HOPPER)
def layer_norm_grad_quack(_: Context) -> Launch:
    """Its backward; the sums of columns are added by torch."""
    from quack.rmsnorm import layernorm_bwd

    return lambda t: layernorm_bwd(t.x, t.gamma, t.dy, t.rstd, t.mean)


@add_rms_norm.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_HOPPER)
def add_rms_norm_quack(_: Context) -> Launch:
    """Its forward with a residual, which stores the sum."""
    from quack.rmsnorm import rmsnorm_fwd

    def launch(t):  # type: ignore[no-untyped-def]
        y, total, rstd, *_ = rmsnorm_fwd(t.x, t.gamma, residual=t.residual, eps=EPS, store_rstd=True)
        return total, y, rstd

    return launch


@add_rms_norm_grad.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_HOPPER)
def add_rms_norm_grad_quack(_: Context) -> Launch:
    """Its backward with a residual; the sums of columns are added by torch."""
    from quack.rmsnorm import rmsnorm_bwd

    return lambda t: rmsnorm_bwd(t.x, t.gamma, t.dy, t.rstd, dresidual_out=t.dsum, has_residual=True)[:2]


@cross_entropy.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_OF_LOGITS)
def cross_entropy_quack(_: Context) -> Launch:
    """Its forward, and the mean by torch, as QuACK has it."""
    from quack.cross_entropy import cross_entropy_fwd

    def launch(t):  # type: ignore[no-untyped-def]
        losses, lse = cross_entropy_fwd(t.logits, t.targets, ignore_index=IGNORED, return_lse=True)
        valid = (t.targets != IGNORED).sum().float()
        return (losses.sum() / valid).view(1), lse, valid.view(1)

    return launch


@cross_entropy_grad.OP.variant("quack", _SAID, role="peer", returns=True, unsupported=_OF_LOGITS)
def cross_entropy_grad_quack(_: Context) -> Launch:
    """Its backward, which takes a gradient for each row."""
    from quack.cross_entropy import cross_entropy_bwd

    def launch(t):  # type: ignore[no-untyped-def]
        of_rows = (t.dloss / t.valid).expand(len(t.targets)).contiguous()
        return (cross_entropy_bwd(t.logits, t.targets, of_rows, t.lse, ignore_index=IGNORED),)

    return launch


_OF_HEADS = LIBRARY.obstacle(row="D", clusters=True)
_LONGEST_HEAD, _HEAD_STEP = 512, 8  # elements


def _other_heads(case: Case) -> str | None:
    size = case.symbols["D"]
    heads = f"QuACK takes heads of up to {_LONGEST_HEAD} elements, a multiple of {_HEAD_STEP}"
    return _OF_HEADS(case) or (heads if size > _LONGEST_HEAD or size % _HEAD_STEP else None)


def _of_tokens(_: Context, t: Tensors) -> dict[str, Any]:
    """Angles of each token: QuACK has no positions of single tokens."""
    return {name: table[t.positions] for name, table in (("cos", t.cos), ("sin", t.sin))}


@rope.OP.variant(
    "quack",
    "QuACK: queries, then keys, in the CuTe DSL; the angles of each token are put together ahead, and read twice",
    role="peer",
    returns=True,
    inputs=(*rope.OP.inputs[:2], *(Tensor(name, ("T", "D // 2"), "float32") for name in ("cos", "sin"))),
    encode=_of_tokens,
    unsupported=_other_heads,
)
def rope_quack(ctx: Context) -> Launch:
    """Two launches, as its `apply_rotary_emb` makes them for queries and for keys."""
    from quack.rotary import apply_rotary

    options = {"interleaved": ctx.s.pairs == "interleaved", "conjugate": ctx.s.way == "backward"}
    return lambda t: tuple(apply_rotary(x[None], t.cos, t.sin, **options)[0] for x in (t.q, t.k))
