"""FlashInfer: kernels for serving language models, forward only. Its functions as in version 0.7.2."""

from __future__ import annotations

from typing import Any

from harness.collection.ops.llm import rope, swiglu
from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import layer_norm, rms_norm
from harness.collection.peers._library import HALVES, PeerLibrary
from harness.model import Case, Traffic
from harness.ops import Context, Launch, Symbols, Tensor, Tensors

LIBRARY = PeerLibrary("FlashInfer", "flashinfer", "flashinfer-python>=0.6")


def _with_rstd(_: Context, t: Tensors) -> dict[str, Any]:
    """The op's outputs: FlashInfer keeps no rstd, since serving needs none."""
    return {"y": t.y, "rstd": norm.rms_normalised(t.x).rstd.float()}


@rms_norm.OP.variant(
    "flashinfer",
    "FlashInfer's kernel for serving, which writes y alone",
    role="peer",
    outputs=(norm.Y,),
    decode=_with_rstd,
    unsupported=LIBRARY.obstacle(dtypes=HALVES),
)
def rms_norm_flashinfer(_: Context) -> Launch:
    """It writes into the op's output."""
    from flashinfer.norm import rmsnorm

    return lambda t: rmsnorm(t.x, t.gamma, eps=norm.EPS, out=t.y)


def _with_statistics(_: Context, t: Tensors) -> dict[str, Any]:
    made = norm.layer_normalised(t.x)
    return {"y": t.y, "mean": made.mean.float(), "rstd": made.rstd.float()}


def _in_floats(_: Context, t: Tensors) -> dict[str, Any]:
    return {"x": t.x, "gamma": t.gamma.float(), "beta": t.beta.float()}


@layer_norm.OP.variant(
    "flashinfer",
    "FlashInfer's kernel for serving, which writes y alone; it takes gamma and beta in float32, widened ahead",
    role="peer",
    returns=True,
    inputs=(norm.X, Tensor("gamma", ("N",), "float32"), Tensor("beta", ("N",), "float32")),
    encode=_in_floats,
    outputs=(norm.Y,),
    decode=_with_statistics,
    unsupported=LIBRARY.obstacle(dtypes=("bfloat16",)),
)
def layer_norm_flashinfer(_: Context) -> Launch:
    """It makes its own output."""
    from flashinfer.norm import layernorm

    return lambda t: (layernorm(t.x, t.gamma, t.beta, norm.EPS),)


_OF_ROWS = LIBRARY.obstacle(row="H", dtypes=HALVES)
_PACK = 8  # halves


def _one_tensor(case: Case) -> str | None:
    if reason := _OF_ROWS(case):
        return reason
    if dict(case.choices)["layout"] == "separate":
        return "FlashInfer takes gate and up as halves of the rows of one tensor"
    packs = f"FlashInfer before 0.7 takes H that is a multiple of {_PACK}; other H isn't tried"
    return packs if case.symbols["H"] % _PACK else None


@swiglu.OP.variant("flashinfer", "FlashInfer's kernel for serving", role="peer", unsupported=_one_tensor)
def swiglu_flashinfer(_: Context) -> Launch:
    """It writes into the op's output."""
    from flashinfer.activation import silu_and_mul

    return lambda t: silu_and_mul(t.gate, out=t.y)


_OF_HEADS = LIBRARY.obstacle(row="D", dtypes=HALVES)
_HEADS = (64, 128, 256, 512)


def _other_heads(case: Case) -> str | None:
    if reason := _OF_HEADS(case):
        return reason
    if dict(case.choices)["way"] == "backward":
        return "FlashInfer has no backward"
    heads = f"FlashInfer takes heads of {', '.join(map(str, _HEADS))} elements"
    return None if case.symbols["D"] in _HEADS else heads


def _in_one_table(_: Context, t: Tensors) -> dict[str, Any]:
    import torch

    return {"table": torch.cat((t.cos, t.sin), 1)}


def _rows_of_tokens(symbols: Symbols, size: int) -> Traffic:
    """The rows of the table that tokens have, not the whole table."""
    assert rope.OP.work
    found = rope.OP.work(symbols, size)
    return Traffic(found.read, found.written)


@rope.OP.variant(
    "flashinfer",
    "FlashInfer's kernel for serving; cos and sin lie in one table, put together ahead",
    role="peer",
    returns=True,
    inputs=(*rope.OP.inputs[:2], Tensor("table", ("P", "D"), "float32"), rope.OP.inputs[4]),
    encode=_in_one_table,
    traffic=_rows_of_tokens,
    unsupported=_other_heads,
)
def rope_flashinfer(ctx: Context) -> Launch:
    """It makes its own outputs, with a row of heads for each token."""
    from flashinfer.rope import apply_rope_with_cos_sin_cache

    neighbours, size = ctx.s.pairs == "interleaved", ctx.s.D

    def launch(t):  # type: ignore[no-untyped-def]
        q, k = t.q.flatten(1), t.k.flatten(1)
        made = apply_rope_with_cos_sin_cache(t.positions, q, k, size, t.table, is_neox=not neighbours)
        return tuple(each.view(like.shape) for each, like in zip(made, (t.q, t.k), strict=True))

    return launch
