"""Attention under a mask that tells queries from each other, but no keys: a query attends to all of them, or to none.

Transformers' BERT has one where torch 2.11 compiles it and no token is padded. The mask is expanded over the keys, so
that its last stride is 0, which none of torch's fused kernels takes: torch multiplies, masks, and takes softmax and
dropout one after the other, over all scores. On an H200 that took 1.6 of the 11.2 ms of a step of BERT-base
(reports/h200/ladder_bert in revision 8dcf5490). Attention without the mask, and 0 for the queries that attend to none,
is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def attention(  # noqa: PLR0913, PLR0917 - torch's arguments, by torch's names
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> Tensor | None:
    """Compute scaled_dot_product_attention() under such a mask; None under others, and without one."""
    if attn_mask is None or is_causal or not _tells_queries_only(attn_mask, query, key):
        return None
    made = functional.scaled_dot_product_attention(query, key, value, None, dropout_p, **more)
    return made.masked_fill(~attn_mask[..., :1], 0)


def _tells_queries_only(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether a mask is of bools, expanded over the keys, and makes nothing of the query larger."""
    sizes = query.shape[:-1]
    fits = mask.dtype == torch.bool and 1 < mask.ndim <= query.ndim and mask.shape[-1] == key.shape[-2]
    fits = fits and all(one in (1, own) for one, own in zip(mask.shape[-2::-1], sizes[::-1], strict=False))
    return fits and mask.stride(-1) == 0
