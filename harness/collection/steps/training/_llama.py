"""A Llama's ladder, and the operators of its rungs: torch's attention, logits in parts, and ours."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import LlamaConfig
from harness.collection.steps.training._rungs import AUTOTUNE, DEFAULT, FLOAT32, TF32, Backend, Rung, on

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from harness.collection.models.llama import LlamaOperators

LLAMAS = ("llama_1b", "llama_toy")
CHUNK = 2048
"""Tokens whose logits are there at a time: enough for a product to fill a GPU."""

# A Llama is trained in bfloat16, whose losses need no scale, so nothing is unscaled.
_AMP = on(TF32, "amp", "autocast to bfloat16 around weights in float32", half="mixed")
_FUSED = on(_AMP, "fused_optimizer", "torch's fused AdamW", fused=True)
_SDPA = on(_FUSED, "sdpa", "and attention by scaled_dot_product_attention", sdpa=True)
_CHUNKED = on(
    _SDPA, "chunked", "and logits of a part of the tokens at a time, made again in the backward", chunked=True
)
_COMPILE = on(_SDPA, "compile", "sdpa with torch.compile of the model and its loss", compiled=DEFAULT)
_COMPILE_CHUNKED = on(
    _COMPILE, "compile_chunked", "compile, with logits of a part of the tokens at a time", chunked=True
)
_HALF = on(_CHUNKED, "chunked_half", "chunked with the model in bfloat16, and masters in float32", half="pure")
_NORMS = on(
    _HALF,
    "fused_norm_adam",
    "our AdamW, and our RMSNorm, which adds the residual",
    role="ours",
    norm=True,
    adam=True,
)
_GATES = on(_NORMS, "gates", "and RoPE and SwiGLU in one kernel each", gates=True)
_LOSS = on(_GATES, "fused_loss", "and the loss behind the head, whose logits become their gradient", loss=True)
_COMPILE_OURS = on(_LOSS, "compile_ours", "fused_loss with torch.compile around our operators", compiled=DEFAULT)
_LADDER = (
    FLOAT32,
    TF32,
    _AMP,
    _FUSED,
    _SDPA,
    on(_SDPA, "sdpa_flash", "beside sdpa: FlashAttention's kernel", backend="flash"),
    on(_SDPA, "sdpa_cudnn", "beside sdpa: cuDNN's kernel", backend="cudnn"),
    on(_SDPA, "recompute", "beside sdpa: blocks keep only what enters them", recomputed=True),
    _CHUNKED,
    on(_CHUNKED, "chunked_graph", "chunked as a CUDA graph of the step", graph=True),
    _HALF,
    _COMPILE,
    on(_COMPILE, "compile_flex", "beside compile: attention by flex_attention", backend="flex"),
    on(_COMPILE, "compile_recompute", "beside compile: blocks keep only what enters them", recomputed=True),
    _COMPILE_CHUNKED,
    on(_COMPILE_CHUNKED, "compile_graph", "compile_chunked as a CUDA graph of the step", graph=True),
    on(
        _COMPILE_CHUNKED,
        "compile_half",
        "compile_chunked with the model in bfloat16, and masters in float32",
        half="pure",
    ),
    on(_COMPILE_CHUNKED, "compile_fp8", "compile_chunked with products of blocks in float8", fp8="torch"),
    on(
        _COMPILE_CHUNKED,
        "compile_torchao",
        "compile_chunked with products of blocks in float8 by torchao",
        role="peer",
        fp8="torchao",
    ),
    on(_COMPILE_CHUNKED, "compile_autotune", f"compile_chunked in mode {AUTOTUNE}", compiled=AUTOTUNE),
    _NORMS,
    _GATES,
    _LOSS,
    on(_LOSS, "graph", "fused_loss as a CUDA graph of the step", graph=True),
    _COMPILE_OURS,
    on(_COMPILE_OURS, "compile_ours_graph", "compile_ours as a CUDA graph of the step", graph=True),
)
_BY_NAME = {rung.name: rung for rung in _LADDER}


def _in_float8(name: str) -> tuple[Rung, Rung]:
    """The rung of a name with products of blocks in float8, and the same as a CUDA graph of the step.

    Torch's kernels and ours meet there with all that torch has: the model in bfloat16, float8, a graph.
    """
    rung = on(_BY_NAME[name], f"{name}_fp8", f"{name} with products of blocks in float8", fp8="torch")
    return rung, on(rung, f"{rung.name}_graph", f"{rung.name} as a CUDA graph of the step", graph=True)


LLAMA = (*_LADDER, *_in_float8("compile_half"), *_in_float8("compile_ours"))


def ours(rung: Rung) -> LlamaOperators:
    """Our operators, as far as the rung has them."""
    from harness.collection.nn._llama_operators import llama_operators

    return llama_operators(norm=rung.norm, gates=rung.gates, loss=rung.loss)


def of_torch(rung: Rung, config: LlamaConfig, device: torch.device) -> dict[str, Any]:
    """Functions of torch that a rung has in place of the model's own operators."""
    parts: dict[str, Any] = {}
    if rung.sdpa and rung.backend == "flex":
        # Made here: torch 2.11 can't compile what makes them together with the attention.
        parts["attention"] = partial(flex_attention, causal_blocks(config.tokens, device))
    elif rung.sdpa:
        parts["attention"] = partial(attention, rung.backend)
    if rung.chunked and not rung.loss:
        parts["linear_cross_entropy"] = linear_cross_entropy
    return parts


def attention(backend: Backend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention as LlamaOperators describes it, by a kernel of torch that takes groups of queries."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    with sdpa_kernel(chosen[backend]) if backend else nullcontext():
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)


def flex_attention(mask: BlockMask, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention by torch's flex_attention, which is fast where it is compiled. mask: `causal_blocks`."""
    from torch.nn.attention.flex_attention import flex_attention as flex

    y: torch.Tensor = flex(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2).flatten(2)


def causal_blocks(tokens: int, device: torch.device) -> BlockMask:
    """Which blocks of scores are to be computed."""
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda _b, _h, query, key: query >= key, None, None, tokens, tokens, device=device)


def linear_cross_entropy(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy as LlamaOperators describes it, with the logits of `CHUNK` tokens at a time."""
    import torch
    from torch.nn.functional import cross_entropy, linear
    from torch.utils.checkpoint import checkpoint

    def summed(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = linear(x, weight)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return cross_entropy(logits.to(wide), labels, reduction="sum")

    parts = zip(x.split(CHUNK), labels.split(CHUNK), strict=True)
    losses: list[torch.Tensor] = [checkpoint(summed, *part, use_reentrant=False) for part in parts]
    return torch.stack(losses).sum() / len(labels)
