"""The catalogue's kernels in a user's model: functions of tensors with gradients, modules, AdamW, a gradient scaler.

>>> from harness import nn
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), nn.LayerNorm(8), nn.Dropout(p=0.1))
>>> optimizer, scaler = nn.AdamW(model.parameters(), lr=1e-3), nn.GradScaler("cpu")
>>> x = torch.randn(4, 8)
>>> y = nn.dropout_add(nn.softmax(model(x)), residual=x, p=0.1)
>>> scaler.scale(y.square().mean()).backward()
>>> _ = scaler.step(optimizer), scaler.update()

`patch(model)` of harness.nn puts them into a model of somebody else, and says what it swapped and what not. It isn't
among the functions of this room, since no number of a bundled op depends on it.

Functions of a decoder:

>>> y, residual = nn.add_rms_norm(x, residual=torch.zeros(4, 8), weight=torch.ones(8))
>>> y = nn.swiglu(gate=y, up=residual)
>>> loss = nn.linear_cross_entropy(y, weight=torch.randn(16, 8), targets=torch.tensor([0, 3, 15, 1]))

Each function is an operator of torch (harness::layer_norm and so on), which torch.compile takes as it is, without a
break. It launches our kernel `tuned` for the tensor's type and sizes; torch does what no kernel of ours can: float64,
float32 where kernels take halves, everything on a CPU, and whatever a kernel would hide from torch, such as transforms
of torch.func. SUPPORT.md beside this file says for each function and each feature of torch who computes it.

The functions of models take whole operators, such as Swin's:

>>> from harness.collection.models import MODELS, swin
>>> model = swin.Swin(MODELS["swin_toy"], nn.swin_operators())

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
from harness.collection.nn._bert_operators import bert_operators
from harness.collection.nn._decoder import add_rms_norm, add_rms_norm_quantize, swiglu
from harness.collection.nn._dropout import bias_dropout_residual, dropout, dropout_add, manual_seed
from harness.collection.nn._llama_operators import llama_operators
from harness.collection.nn._losses import cross_entropy, embedding, linear_cross_entropy
from harness.collection.nn._memory import forget
from harness.collection.nn._modules import BatchNormAddReLU, Dropout, LayerNorm, RMSNorm, Softmax
from harness.collection.nn._resnet_operators import resnet_operators
from harness.collection.nn._rope import rope
from harness.collection.nn._rows import layer_norm, rms_norm
from harness.collection.nn._scaler import GradScaler
from harness.collection.nn._softmax import softmax
from harness.collection.nn._swin_operators import swin_operators
from harness.collection.nn._unscale import unscale_
from harness.collection.nn._windows import norm_partition, window_partition, window_reverse

__all__ = [
    "AdamW",
    "BatchNormAddReLU",
    "Dropout",
    "GradScaler",
    "LayerNorm",
    "RMSNorm",
    "Softmax",
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
    "llama_operators",
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
