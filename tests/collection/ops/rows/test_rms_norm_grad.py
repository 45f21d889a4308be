"""The backward of RMSNorm: only what LayerNorm's doesn't share. The rest is in test_norm_grad.py."""

from __future__ import annotations

import pytest

from harness.collection.ops.rows._norm import EPS

# As of LayerNorm, whose kernels are the same but for the second sum.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (256, 1024),
        (16, 128_256),
        (2**20, 21),
        (2**20, 49),
        (2**20, 64),
        (2**20, 256),
        (2**20, 512),
        (2**20, 1023),
        (2**20, 1024),
        (2**15, 8191),
        (2**15, 8192),
        (8000, 16_384),
        (1000, 34_200),
        (1000, 50_257),
        (1000, 65_536),
        (1000, 65_537),
        (1000, 76_208),
        (1000, 81_919),
        (1000, 131_072),
        (1, 512),
        (8, 2**18),
        (8, 2**18 + 1),
    ]
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_eager_is_what_autograd_does(trial, dtype):
    import torch

    t = trial("rms_norm_grad", "eager", dtype, M=9, N=40)
    x, gamma = t.inputs.x.requires_grad_(), t.inputs.gamma.requires_grad_()
    wanted = torch.autograd.grad(torch.nn.functional.rms_norm(x, (40,), gamma, EPS), (x, gamma), t.inputs.dy)
    after = t.call()
    precision = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    for got, want in zip((after.dx, after.dgamma), wanted, strict=True):
        assert got.dtype == x.dtype
        torch.testing.assert_close(got, want, rtol=precision, atol=precision)


@pytest.mark.gpu
def test_eager_on_a_gpu_passes_the_check(trial):
    """On a GPU eager is a single operation, on a CPU several."""
    for dtype in ("float32", "float16", "bfloat16"):
        assert trial("rms_norm_grad", "eager", dtype, "cuda", M=300, N=1000).complaint_after_call() is None


def test_compile_computes_the_same(trial):
    assert trial("rms_norm_grad", "compile", "bfloat16", M=33, N=65).complaint_after_call() is None
