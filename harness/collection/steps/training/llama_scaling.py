"""Training steps of a Llama on several devices, each with sequences of its own.

Devices train together in DistributedDataParallel, or by FSDP2 with the settings of torchtitan.
"""

from __future__ import annotations

from dataclasses import replace

from harness.collection.steps.training._llama import LLAMA, LLAMAS
from harness.collection.steps.training._ranks import SHARDED, SHARDED_OURS, WAYS
from harness.collection.steps.training._rungs import CLIP, CLIPS, MICRO, MICROS
from harness.collection.steps.training._scaling import scaling_op

LADDER = ("chunked_half", "fused_loss", "compile_ours")
"""The highest rungs of eager torch and of ours."""
_RUNGS = {rung.name: rung for rung in LLAMA}

OP = scaling_op(
    "llama_scaling",
    "a step of a Llama's pre-training on several devices, sequences a second of all of them",
    LLAMAS,
    # FSDP2 has weights in float32 where the rung has halves with masters, and gathers them in halves.
    {**dict.fromkeys((*WAYS, *SHARDED), _RUNGS["chunked"]), SHARDED_OURS: replace(_RUNGS["fused_loss"], half="mixed")},
    [_RUNGS[name] for name in LADDER],
    size="sequences of a step on each device",
    item="sequences",
    choices={CLIP: CLIPS, MICRO: MICROS},
    dtypes=("bfloat16",),
)
