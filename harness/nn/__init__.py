"""The catalogue's kernels in a user's model."""

from harness.nn._adamw import AdamW
from harness.nn._attention import window_attention
from harness.nn._batch_norm import batch_norm_add_relu
from harness.nn._dropout import bias_dropout_residual, dropout, dropout_add, manual_seed
from harness.nn._models import bert_operators, resnet_operators, swin_operators
from harness.nn._rows import layer_norm, rms_norm, softmax
from harness.nn._scaler import GradScaler
from harness.nn._unscale import unscale_
from harness.nn._windows import norm_partition, window_partition, window_reverse

__all__ = [
    "AdamW",
    "GradScaler",
    "batch_norm_add_relu",
    "bert_operators",
    "bias_dropout_residual",
    "dropout",
    "dropout_add",
    "layer_norm",
    "manual_seed",
    "norm_partition",
    "resnet_operators",
    "rms_norm",
    "softmax",
    "swin_operators",
    "unscale_",
    "window_attention",
    "window_partition",
    "window_reverse",
]
