"""The catalogue's kernels in a user's model: functions of tensors with gradients, AdamW, and a gradient scaler.

    from harness import nn

    y = nn.layer_norm(x, norm.weight, norm.bias)
    y = nn.bias_dropout_residual(product, bias, y, p=0.1)
    model = Swin(MODELS["swin_t"], nn.swin_operators()).cuda()
    optimizer, scaler = nn.AdamW(model.parameters(), lr=1e-3), nn.GradScaler()

    y, residual = nn.add_rms_norm(attended, residual, norm.weight)          # of a decoder
    q, k = nn.rope(q, k, cos, sin)
    y = nn.swiglu(gate, up)
    loss = nn.linear_cross_entropy(y, head.weight, targets)

Each function is an operator of torch (harness::layer_norm and so on), which torch.compile takes as it is, without a
break. It launches our kernel `tuned` for the tensor's type and sizes; torch does what no kernel of ours can: float64,
float32 where kernels take halves, and everything on a CPU. Second derivatives aren't there, but for the windows.

A CUDA graph may capture all of them, once they have been called with the same sizes outside of it: kernels are compiled
and loaded then. Memory that kernels need besides comes from torch's allocator at each call, so streams and threads
don't disturb each other, and graphs that torch.compile makes by itself (the modes `reduce-overhead` and `max-autotune`)
have it in their pools.

Where a C compiler is installed, a call costs the host about as much as torch's (scripts/host_cost.py measures it): the
first call notes its launches, and a small launcher in C, which is compiled then, makes them again.
"""

from harness.collection.nn._adamw import AdamW
from harness.collection.nn._attention import window_attention
from harness.collection.nn._batch_norm import batch_norm_add_relu
from harness.collection.nn._decoder import add_rms_norm, add_rms_norm_quantize, swiglu
from harness.collection.nn._dropout import bias_dropout_residual, dropout, dropout_add, manual_seed
from harness.collection.nn._losses import cross_entropy, embedding, linear_cross_entropy
from harness.collection.nn._memory import forget
from harness.collection.nn._models import bert_operators, resnet_operators, swin_operators
from harness.collection.nn._rope import rope
from harness.collection.nn._rows import layer_norm, rms_norm, softmax
from harness.collection.nn._scaler import GradScaler
from harness.collection.nn._unscale import unscale_
from harness.collection.nn._windows import norm_partition, window_partition, window_reverse

__all__ = [
    "AdamW",
    "GradScaler",
    "add_rms_norm",
    "add_rms_norm_quantize",
    "batch_norm_add_relu",
    "bert_operators",
    "bias_dropout_residual",
    "cross_entropy",
    "dropout",
    "dropout_add",
    "embedding",
    "forget",
    "layer_norm",
    "linear_cross_entropy",
    "manual_seed",
    "norm_partition",
    "resnet_operators",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
    "swin_operators",
    "unscale_",
    "window_attention",
    "window_partition",
    "window_reverse",
]
