"""Training steps of BERT's pre-training on several devices, each with sequences of its own.

Source: OneFlow's DLPerf, which trains BERT-base on one device to four nodes of eight.
"""

from __future__ import annotations

from harness.collection.steps.training._bert import BERTS
from harness.collection.steps.training._ranks import BY_COPIES, IN_BUCKETS, IN_HALVES, WAYS
from harness.collection.steps.training._rungs import CLIP, CLIPS, SDPA
from harness.collection.steps.training._scaling import scaling_op

OP = scaling_op(
    "bert_scaling",
    "a step of BERT's pre-training on several devices, sequences a second of all of them",
    BERTS,
    dict.fromkeys((*WAYS, IN_HALVES, IN_BUCKETS, BY_COPIES), SDPA),
    size="sequences of a step on each device",
    item="sequences",
    choices={CLIP: CLIPS},
)
