"""A training step of a Llama, as pre-training makes them: sequences of random tokens, the next token predicted, AdamW.

The practice is that of torchtitan: bfloat16, fused attention and optimizer, torch.compile, logits in parts.
"""

from __future__ import annotations

from harness.collection.steps.training._llama import LLAMA, LLAMAS
from harness.collection.steps.training._rungs import CLIP, CLIPS, MICRO, MICROS
from harness.collection.steps.training._steps import training_op

OP = training_op(
    "llama_train",
    "a step of a Llama's pre-training, sequences and tokens a second",
    LLAMAS,
    LLAMA,
    size="sequences of a step",
    item="sequences",
    choices={CLIP: CLIPS, MICRO: MICROS},
    dtypes=("bfloat16",),
)
