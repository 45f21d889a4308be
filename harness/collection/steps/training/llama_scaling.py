"""Training steps of a Llama on several devices, each with sequences of its own, in DistributedDataParallel."""

from __future__ import annotations

from harness.collection.steps.training._rungs import CLIP, CLIPS, LLAMA, MICRO, MICROS
from harness.collection.steps.training._scaling import scaling_op

OP = scaling_op(
    "llama_scaling",
    "a step of a Llama's pre-training on several devices, sequences a second of all of them",
    ("llama_1b", "llama_toy"),
    next(rung for rung in LLAMA if rung.name == "chunked"),
    size="sequences of a step on each device",
    item="sequences",
    choices={CLIP: CLIPS, MICRO: MICROS},
    dtypes=("bfloat16",),
)
