"""What models of images share: batches of random images, and the loss of their classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.collection.models.sizes import CHANNELS, ResNetConfig, SwinConfig

SMOOTHING = 0.1
"""Share of a label that is spread over all classes."""


class ImageBatch(NamedTuple):
    """Images (B, 3, H, W), normally distributed, and the class of each (B)."""

    images: Tensor
    labels: Tensor


def batch(
    config: ResNetConfig | SwinConfig, size: int, generator: torch.Generator, device: torch.device | str
) -> ImageBatch:
    """Makes `size` images with labels where the generator is, and moves them to the device."""
    where = generator.device
    images = torch.randn(size, CHANNELS, config.image, config.image, generator=generator, device=where)
    labels = torch.randint(config.classes, (size,), generator=generator, device=where)
    return ImageBatch(images.to(device), labels.to(device))


def loss(model: nn.Module, given: ImageBatch) -> Tensor:
    """The mean cross entropy of the labels, with label smoothing. Halves are summed in float32: their sums overflow."""
    logits = model(given.images)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits, given.labels, label_smoothing=SMOOTHING)
