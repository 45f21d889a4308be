"""A training step of Swin Transformer: images of 224 x 224, AdamW, stochastic depth, label smoothing.

Source: NVIDIA's talk on training Swin Transformer, whose figures are of Swin-Large.
"""

from __future__ import annotations

from harness.collection.steps.training._rungs import SWIN
from harness.collection.steps.training._steps import training_op

OP = training_op(
    "swin_train",
    "a training step of Swin Transformer, images a second",
    ("swin_tiny", "swin_small", "swin_base", "swin_large", "swin_toy"),
    SWIN,
    size="images of a step",
    item="images",
)
