"""The operators of a ResNet, with the catalogue's kernels in place of torch's."""

from __future__ import annotations

from torch import Tensor, nn

from harness.collection.models.resnet import ResNetOperators
from harness.collection.nn._batch_norm import batch_norm_add_relu


def resnet_operators() -> ResNetOperators:
    """The operators of a ResNet: batch norm, residual and ReLU in one."""
    return ResNetOperators(bn_add_relu=_bn_add_relu)


def _bn_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    if norm.training:
        norm.num_batches_tracked.add_(1)
    running = norm.running_mean, norm.running_var
    return batch_norm_add_relu(x, residual, *running, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)
