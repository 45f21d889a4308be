"""A Swin Transformer's ladder, and the operators of its rungs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.collection.models import SwinConfig
from harness.collection.steps.training._operators import half_norm
from harness.collection.steps.training._rungs import (
    COMPILE_HALF_NORM,
    EVERY,
    SDPA_UP,
    TORCH,
    UNSCALE,
    Rung,
    above_ours,
    on,
)

if TYPE_CHECKING:
    import torch

    from harness.collection.models.swin import SwinOperators

SWINS = ("swin_tiny", "swin_small", "swin_base", "swin_large", "swin_toy")

_SECOND_STREAM = "with gradients of weights on a second stream"
_SDPA_STREAMS = on(SDPA_UP[0], "sdpa_streams", f"sdpa_graph {_SECOND_STREAM}", "S8", streams=True)
_NORM_ADAM = on(
    UNSCALE,
    "fused_norm_adam",
    "on unscale: LayerNorm, softmax and AdamW in one kernel each",
    "S4",
    norm=True,
    adam=True,
)
_WINDOWS = on(_NORM_ADAM, "windows", "and windows cut and joined by one kernel each", "S5", windows=True)
_ATTENTION = on(_WINDOWS, "attention", "and attention over windows in one kernel", "S6", attention=True)
_SWIN_OURS = tuple(above_ours(_ATTENTION))
# Inductor joins LayerNorm and windows with what is before and after them, but has no kernel for this attention.
_COMPILE_ATTENTION = on(
    COMPILE_HALF_NORM,
    "compile_attention",
    "compile_half_norm with our attention over windows, and no other operator of ours",
    "S6",
    role="ours",
    attention=True,
)
_COMPILE_ATTENTION_GRAPH = on(
    _COMPILE_ATTENTION, "compile_attention_graph", "compile_attention as a CUDA graph of the step", "S8", graph=True
)
_STREAMS = on(_SWIN_OURS[0], "streams", f"graph {_SECOND_STREAM}", "S8", streams=True)

SWIN = (
    *EVERY,
    *TORCH,
    _SDPA_STREAMS,
    _NORM_ADAM,
    _WINDOWS,
    _ATTENTION,
    *_SWIN_OURS,
    _STREAMS,
    _COMPILE_ATTENTION,
    _COMPILE_ATTENTION_GRAPH,
)


def ours(rung: Rung) -> SwinOperators:
    """Our operators, as far as the rung has them."""
    from harness.collection.nn._swin_operators import swin_operators

    return swin_operators(norm=rung.norm, windows=rung.windows, attention=rung.attention)


def of_torch(rung: Rung, _config: SwinConfig, _device: torch.device) -> dict[str, Any]:
    """Functions of torch that a rung has in place of the model's own operators, or of ours."""
    attention = {"window_attention": of_windows} if rung.sdpa and not rung.attention else {}
    return attention | half_norm(rung)


def of_windows(qkv: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention within windows, as SwinOperators describes it. The windows of an image count as its heads.

    So one tensor of masks and biases serves all images.
    """
    from torch.nn.functional import scaled_dot_product_attention

    count, tokens, channels = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    heads, windows = bias.shape[0], 1 if mask is None else len(mask)
    q, k, v = qkv.view(count // windows, windows, tokens, 3, heads, -1).permute(3, 0, 1, 4, 2, 5).flatten(2, 3)
    both = (bias if mask is None else (bias + mask[:, None]).flatten(0, 1)).to(q.dtype)
    attended = scaled_dot_product_attention(q, k, v, attn_mask=both[None])
    return attended.unflatten(1, (windows, heads)).transpose(2, 3).reshape(count, tokens, channels)
