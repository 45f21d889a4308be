"""FlashInfer: kernels for serving language models, forward only. Its functions as in version 0.7.2."""

from __future__ import annotations

from typing import Any

from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows import layer_norm, rms_norm
from harness.collection.peers._library import HALVES, PeerLibrary
from harness.ops import Context, Launch, Tensor, Tensors

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
