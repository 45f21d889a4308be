"""A training step of BERT's pre-training with both heads: sequences of 128 tokens, 20 of them predicted, AdamW.

Source: OneFlow's DLPerf, which trains BERT-base in mixed precision with the largest batch that fits.
"""

from __future__ import annotations

from harness.collection.steps.training._bert import BERT, BERTS
from harness.collection.steps.training._rungs import CLIP, CLIPS
from harness.collection.steps.training._steps import training_op

OP = training_op(
    "bert_train",
    "a step of BERT's pre-training, sequences and tokens a second",
    BERTS,
    BERT,
    size="sequences of a step",
    item="sequences",
    choices={CLIP: CLIPS},
)
