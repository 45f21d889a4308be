"""Training steps of Swin Transformer on several devices, each with images of its own, and rungs of its ladder on them.

Source: NVIDIA's talk on training Swin Transformer, which compares steps of Swin-Large on one device and on eight.
"""

from __future__ import annotations

from harness.collection.steps.training._ranks import BY_COPIES, IN_BUCKETS, IN_HALVES, WAYS
from harness.collection.steps.training._rungs import SDPA
from harness.collection.steps.training._scaling import scaling_op
from harness.collection.steps.training._swin import SWIN

LADDER = ("tf32", "amp", "fused_norm_adam", "windows", "attention", "compile_attention")
"""The rungs of the talk, and torch.compile with our attention. `step: graph` makes a CUDA graph of each."""

OP = scaling_op(
    "swin_scaling",
    "a training step of Swin Transformer on several devices, images a second of all of them",
    ("swin_tiny", "swin_large", "swin_toy"),
    dict.fromkeys((*WAYS, IN_HALVES, IN_BUCKETS, BY_COPIES), SDPA),
    [rung for rung in SWIN if rung.name in LADDER],
    size="images of a step on each device",
    item="images",
)
