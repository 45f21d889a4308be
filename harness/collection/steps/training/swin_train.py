"""A training step of Swin Transformer: images of 224 x 224, AdamW, stochastic depth, label smoothing.

Source: NVIDIA's talk on training Swin Transformer, whose figures are of Swin-Large.
"""

from __future__ import annotations

from harness.collection.steps.training._steps import training_op
from harness.collection.steps.training._swin import SWIN, SWINS

OP = training_op(
    "swin_train",
    "a training step of Swin Transformer, images a second",
    SWINS,
    SWIN,
    size="images of a step",
    item="images",
)
