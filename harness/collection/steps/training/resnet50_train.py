"""A training step of ResNet-50 v1.5: images of 224 x 224, SGD with momentum, label smoothing.

Source: OneFlow's DLPerf, which trains it in mixed precision with batches of 256.
"""

from __future__ import annotations

from harness.collection.steps.training._resnet import RESNET, RESNETS
from harness.collection.steps.training._steps import training_op
from harness.ops import Choice

OP = training_op(
    "resnet50_train",
    "a training step of ResNet-50 v1.5, images a second",
    RESNETS,
    RESNET,
    size="images of a step",
    item="images",
    choices={"layout": Choice("order of an image's elements in memory", ("nchw", "nhwc"))},
)
