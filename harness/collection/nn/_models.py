"""The operators of the project's models, with the catalogue's kernels in place of torch's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from harness.collection.models.bert import BertOperators
from harness.collection.models.llama import LlamaOperators
from harness.collection.models.resnet import ResNetOperators
from harness.collection.models.swin import SwinOperators
from harness.collection.nn._attention import window_attention
from harness.collection.nn._batch_norm import batch_norm_add_relu
from harness.collection.nn._decoder import add_rms_norm, swiglu
from harness.collection.nn._dropout import bias_dropout_residual, dropout
from harness.collection.nn._losses import linear_cross_entropy
from harness.collection.nn._rope import rope
from harness.collection.nn._rows import layer_norm, rms_norm
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


def resnet_operators() -> ResNetOperators:
    """The operators of a ResNet: batch norm, residual and ReLU in one."""
    return ResNetOperators(bn_add_relu=_bn_add_relu)


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


def bert_operators() -> BertOperators:
    """The operators of a BERT: layer norm, softmax, dropout, and dropout with a product's bias and a residual.

    Residuals are rounded to the type of the product. Under autocast what lies between the layers is in halves, since
    our layer norm hands on halves, where torch's hands on float32.
    """
    return BertOperators(layer_norm=_layer_norm, softmax=softmax, dropout=dropout, dense_dropout_add=_dense_dropout_add)


def _rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.eps)


def _add_rms_norm(norm: nn.RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, residual.to(x.dtype), norm.weight, norm.eps)


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rope(q, k, cos, sin)


def _linear_cross_entropy(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return linear_cross_entropy(x, weight.to(x.dtype), labels)


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, norm.eps)


def _norm_partition(norm: nn.LayerNorm, x: Tensor, window: int, shift: int) -> Tensor:
    return norm_partition(x, norm.weight, norm.bias, window, shift, norm.eps)


def _bn_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    if norm.training:
        norm.num_batches_tracked.add_(1)
    running = norm.running_mean, norm.running_var
    return batch_norm_add_relu(x, residual, *running, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)


def _dense_dropout_add(dense: nn.Linear, x: Tensor, residual: Tensor, p: float) -> Tensor:
    product = nn.functional.linear(x, dense.weight)
    return bias_dropout_residual(product, dense.bias, residual.to(product.dtype), p)
