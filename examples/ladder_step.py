"""A training step for `harness ladder examples/ladder_step.py`, which says what makes it faster."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


def model() -> nn.Module:
    """The model as it is made for training; the harness moves it to the device."""
    images = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*images, nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 10))


def batch() -> tuple[Tensor, Tensor]:
    """The tensors of a step."""
    return torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))


def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """One number. What stands behind the model is the batch."""
    return functional.cross_entropy(model(images), labels)


def optimizer(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """It may be left out: then it is AdamW with a rate of 1e-4."""
    return torch.optim.AdamW(parameters, lr=3e-3)
