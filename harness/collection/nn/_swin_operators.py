"""The operators of a Swin Transformer, with the catalogue's kernels in place of torch's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from harness.collection.models.swin import SwinOperators
from harness.collection.nn._attention import window_attention
from harness.collection.nn._rows import layer_norm
from harness.collection.nn._softmax import softmax
from harness.collection.nn._windows import norm_partition, window_partition, window_reverse


def swin_operators(*, norm: bool = True, windows: bool = True, attention: bool = True) -> SwinOperators:
    """The operators of a Swin Transformer, with ours in place of some.

    norm: layer_norm, and softmax where attention isn't ours; under autocast what lies between the blocks is in halves
    then, as the patches' convolution leaves it, and not in float32. windows: window_partition and window_reverse; with
    `norm` also norm_partition, which is one kernel where no gradient is wanted. attention: window_attention.
    """
    ours: dict[str, Any] = {}
    if norm:
        ours |= {"layer_norm": _layer_norm, "softmax": softmax}
    if windows:
        ours |= {"window_partition": window_partition, "window_reverse": window_reverse}
    if norm and windows:
        ours["norm_partition"] = _norm_partition
    if attention:
        ours["window_attention"] = window_attention
    return SwinOperators(**ours)


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, norm.eps)


def _norm_partition(norm: nn.LayerNorm, x: Tensor, window: int, shift: int) -> Tensor:
    return norm_partition(x, norm.weight, norm.bias, window, shift, norm.eps)
