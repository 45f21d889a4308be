"""The operators of a BERT, with the catalogue's kernels in place of torch's."""

from __future__ import annotations

from torch import Tensor, nn

from harness.collection.models.bert import BertOperators
from harness.collection.nn._dropout import bias_dropout_residual, dropout
from harness.collection.nn._rows import layer_norm
from harness.collection.nn._softmax import softmax


def bert_operators() -> BertOperators:
    """The operators of a BERT: layer norm, softmax, dropout, and dropout with a product's bias and a residual.

    Residuals are rounded to the type of the product. Under autocast what lies between the layers is in halves, since
    our layer norm hands on halves, where torch's hands on float32.
    """
    return BertOperators(layer_norm=_layer_norm, softmax=softmax, dropout=dropout, dense_dropout_add=_dense_dropout_add)


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, norm.eps)


def _dense_dropout_add(dense: nn.Linear, x: Tensor, residual: Tensor, p: float) -> Tensor:
    product = nn.functional.linear(x, dense.weight)
    return bias_dropout_residual(product, dense.bias, residual.to(product.dtype), p)
