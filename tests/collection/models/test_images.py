"""The loss of models for images."""

from __future__ import annotations

import math

import torch

from harness.collection.models import images


def test_the_loss_of_halves_does_not_overflow():
    """The sum over 64 images and 1000 classes, which label smoothing takes, is no number of float16."""
    size, classes = 64, 1000
    given = images.ImageBatch(torch.zeros(size, classes, dtype=torch.float16), torch.arange(size))
    loss = images.loss(torch.nn.Identity(), given)
    assert loss.dtype == torch.float32
    assert math.isclose(loss.item(), math.log(classes), rel_tol=1e-3)
