"""Training steps of ResNet-50 v1.5 on several devices, each with images of its own.

Source: OneFlow's DLPerf, which trains it on one device to four nodes of eight.
"""

from __future__ import annotations

from harness.collection.steps.training._ranks import BY_COPIES, IN_BUCKETS, IN_HALVES, WAYS
from harness.collection.steps.training._resnet import RESNETS
from harness.collection.steps.training._rungs import FUSED
from harness.collection.steps.training._scaling import scaling_op
from harness.ops import Choice

OP = scaling_op(
    "resnet50_scaling",
    "a training step of ResNet-50 on several devices, images a second of all of them",
    RESNETS,
    dict.fromkeys((*WAYS, IN_HALVES, IN_BUCKETS, BY_COPIES), FUSED),
    size="images of a step on each device",
    item="images",
    choices={"layout": Choice("order of an image's elements in memory", ("nhwc", "nchw"))},
)
