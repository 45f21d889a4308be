"""The operators of models: a rung has some from torch, and some are ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import BertConfig, LlamaConfig, ResNetConfig, SwinConfig
from harness.collection.steps.training import _llama
from harness.collection.steps.training._rungs import Rung

if TYPE_CHECKING:
    import torch


def operators(rung: Rung, config: object, device: torch.device) -> Any:
    """The operators of a model with this configuration; None for the model's own."""
    found = ours(rung, config) if rung.norm or rung.attention else None
    parts = _of_torch(rung, config, device)
    return replace(found or _plain(config), **parts) if parts else found


def ours(rung: Rung, config: object) -> Any:
    """Our operators, as far as the rung has them. A BERT has all of our dropout, which `operators` may replace."""
    from harness.collection import nn

    if isinstance(config, ResNetConfig):
        return nn.resnet_operators()
    if isinstance(config, BertConfig):
        return nn.bert_operators()
    if isinstance(config, LlamaConfig):
        return nn.llama_operators(norm=rung.norm, gates=rung.gates, loss=rung.loss)
    return nn.swin_operators(norm=rung.norm, windows=rung.windows, attention=rung.attention)


def torch_attention(config: object) -> Any:
    """The operators of a model with attention, with torch's attention in place of products and softmax.

    Torch chooses a kernel itself.
    """
    return replace(_plain(config), **_attention(config))


def _plain(config: object) -> Any:
    """The operators that a model with attention has unless told."""
    from harness.collection.models.bert import BertOperators
    from harness.collection.models.llama import LlamaOperators
    from harness.collection.models.swin import SwinOperators

    kinds: dict[type, type] = {BertConfig: BertOperators, SwinConfig: SwinOperators, LlamaConfig: LlamaOperators}
    assert type(config) in kinds, f"no attention in {config}"
    return kinds[type(config)]()


def _attention(config: object) -> dict[str, Any]:
    return {"attention": of_bert} if isinstance(config, BertConfig) else {"window_attention": of_windows}


def _of_torch(rung: Rung, config: object, device: torch.device) -> dict[str, Any]:
    """Functions of torch that a rung has in place of a model's own operators, or of ours."""
    if isinstance(config, LlamaConfig):
        return _llama.operators(rung, config.tokens, device)
    parts: dict[str, Any] = _attention(config) if rung.sdpa and not rung.attention else {}
    if rung.half_norm:
        parts |= {"layer_norm": layer_norm, "softmax": softmax}
    if isinstance(config, BertConfig):
        parts |= _dropout(rung)
    return parts


def _dropout(rung: Rung) -> dict[str, Any]:
    """The dropout of a BERT, where neither all of it is ours nor autocast decides the type of residuals.

    Beside our LayerNorm, and torch's like it, residuals have the type of the product, whoever does the dropout.
    """
    if rung.bias_residual or not (rung.norm or rung.half_norm):
        return {}
    from torch.nn import functional

    from harness.collection import nn

    dropout = nn.dropout if rung.dropout else functional.dropout
    return {"dropout": dropout, "dense_dropout_add": partial(dense_dropout_add, dropout)}


def layer_norm(norm: torch.nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    """Torch's LayerNorm in the type of x, where autocast would give float32."""
    import torch

    with torch.autocast(x.device.type, enabled=False):
        weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        return torch.nn.functional.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Torch's softmax in the type of x, where autocast would give float32."""
    import torch

    with torch.autocast(x.device.type, enabled=False):
        return torch.softmax(x, dim)


def dense_dropout_add(
    dropout: Callable[[torch.Tensor, float], torch.Tensor],
    dense: torch.nn.Linear,
    x: torch.Tensor,
    residual: torch.Tensor,
    p: float,
) -> torch.Tensor:
    """Dropout of a product with its bias, and a residual, which is rounded to the type of the product."""
    product = dense(x)
    return dropout(product, p) + residual.to(product.dtype)


def of_bert(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, p: float) -> torch.Tensor:
    """Attention of a layer, as BertOperators describes it."""
    from torch.nn.functional import scaled_dot_product_attention

    # Autocast makes halves of q, k and v, and only a mask of their type has a fast kernel.
    mask = mask if mask is None else mask.to(q.dtype)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p).transpose(1, 2).flatten(2)


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
