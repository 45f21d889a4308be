"""A BERT's ladder, and the operators of its rungs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.collection.models import BertConfig
from harness.collection.steps.training._operators import half_norm
from harness.collection.steps.training._rungs import EVERY, TORCH, UNSCALE, Rung, above_ours, on

if TYPE_CHECKING:
    import torch

    from harness.collection.models.bert import BertOperators

BERTS = ("bert_base", "bert_toy")

# The three that follow have attention of products, softmax and dropout, as D's text has: torch's own keeps no mask.
_BYTE_MASKS = on(
    UNSCALE,
    "byte_masks",
    "on unscale: our LayerNorm, softmax and AdamW; torch's dropout, which keeps bytes",
    norm=True,
    adam=True,
)
_BIT_MASKS_ALONE = on(_BYTE_MASKS, "bit_masks_alone", "and our dropout, which keeps bits", "D3", dropout=True)
_BIT_MASKS = on(
    _BIT_MASKS_ALONE, "bit_masks", "and bias and residual in the kernel of dropout", "D5", bias_residual=True
)
_BERT_OURS = on(_BIT_MASKS, "fused_norm_adam", "and torch's attention by scaled_dot_product_attention", "S4", sdpa=True)

BERT = (*EVERY, *TORCH, _BYTE_MASKS, _BIT_MASKS_ALONE, _BIT_MASKS, _BERT_OURS, *above_ours(_BERT_OURS))


def ours(_rung: Rung) -> BertOperators:
    """Our operators. They have all of our dropout, which `of_torch` may replace."""
    from harness.collection.nn._bert_operators import bert_operators

    return bert_operators()


def of_torch(rung: Rung, _config: BertConfig, _device: torch.device) -> dict[str, Any]:
    """Functions of torch that a rung has in place of the model's own operators, or of ours."""
    attention = {"attention": of_bert} if rung.sdpa and not rung.attention else {}
    return attention | half_norm(rung) | _dropout(rung)


def _dropout(rung: Rung) -> dict[str, Any]:
    """The dropout of a BERT, where neither all of it is ours nor autocast decides the type of residuals.

    Beside our LayerNorm, and torch's like it, residuals have the type of the product, whoever does the dropout.
    """
    if rung.bias_residual or not (rung.norm or rung.half_norm):
        return {}
    from torch.nn import functional

    from harness.collection.nn._dropout import dropout as our_dropout

    dropout = our_dropout if rung.dropout else functional.dropout
    return {"dropout": dropout, "dense_dropout_add": partial(dense_dropout_add, dropout)}


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
