"""What torch has for a Llama: kernels of attention, logits in parts, products in float8."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.steps.training._rungs import Backend, Rung

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

CHUNK = 2048
"""Tokens whose logits are there at a time: enough for a product to fill a GPU."""


def operators(rung: Rung, tokens: int, device: torch.device) -> dict[str, Any]:
    """Functions of torch that a rung has in place of the model's own operators, for sequences of so many tokens."""
    parts: dict[str, Any] = {}
    if rung.sdpa and rung.backend == "flex":
        # Made here: torch 2.11 can't compile what makes them together with the attention.
        parts["attention"] = partial(flex_attention, causal_blocks(tokens, device))
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
