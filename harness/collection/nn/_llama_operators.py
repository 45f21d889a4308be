"""The operators of a Llama, with the catalogue's kernels in place of torch's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from harness.collection.models.llama import LlamaOperators
from harness.collection.nn._decoder import add_rms_norm, swiglu
from harness.collection.nn._losses import linear_cross_entropy
from harness.collection.nn._rope import rope
from harness.collection.nn._rows import rms_norm


def llama_operators(*, norm: bool = True, gates: bool = True, loss: bool = True) -> LlamaOperators:
    """The operators of a Llama, with ours in place of some; attention stays torch's.

    norm: rms_norm and add_rms_norm; under autocast what lies between the layers is in halves then. gates: rope and
    swiglu. loss: linear_cross_entropy, which has the logits of a part of the tokens at a time.
    """
    ours: dict[str, Any] = {}
    if norm:
        ours |= {"rms_norm": _rms_norm, "add_rms_norm": _add_rms_norm}
    if gates:
        ours |= {"rope": _rope, "swiglu": swiglu}
    if loss:
        ours["linear_cross_entropy"] = _linear_cross_entropy
    return LlamaOperators(**ours)


def _rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.eps)


def _add_rms_norm(norm: nn.RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, residual.to(x.dtype), norm.weight, norm.eps)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rope(q, k, cos, sin)


def _linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight.to(x.dtype), labels)
