"""The backward of LayerNorm: only what RMSNorm's doesn't share. The rest is in test_norm_grad.py."""

from __future__ import annotations

import pytest

# Teams of lanes, a block, and a cluster, in packs and in single elements, with one row or two at once, and with all
# stages or one; few rows and long ones. Types differ in what a shape asks for. Not here: float32 rows of single
# elements beyond 81920, up to 98304, of which threads spill up to 64 bytes; and lengths beyond 65536 that make the last
# chunk of a cluster's last block so short that blocks have fewer than 512 threads, which may spill up to 16.
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
        (2**15, 4096),
        (2**15, 8191),
        (2**15, 8192),
        (8000, 16_384),
        (1000, 50_257),
        (1000, 65_536),
        (1000, 65_537),
        (1000, 81_919),
        (1000, 100_000),
        (1000, 131_072),
        (8, 2**18),
        (8, 2**18 + 1),
    ]
]

# On sm_100 alone, of two kernels: float32 with 1024 threads a block, bfloat16 with 64 sums of columns a thread.
SPILLED = 12


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_eager_is_what_autograd_does(trial, dtype):
    """Autograd uses the statistics of torch's forward, which have the input's type on a CPU."""
    import torch

    t = trial("layer_norm_grad", "eager", dtype, M=9, N=40)
    x, gamma, beta = t.inputs.x.requires_grad_(), t.inputs.gamma.requires_grad_(), torch.zeros_like(t.inputs.gamma)
    y = torch.nn.functional.layer_norm(x, (40,), gamma, beta.requires_grad_())
    wanted = torch.autograd.grad(y, (x, gamma, beta), t.inputs.dy)
    after = t.call()
    precision = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}[dtype]
    for got, want in zip((after.dx, after.dgamma, after.dbeta), wanted, strict=True):
        assert got.dtype == x.dtype
        torch.testing.assert_close(got, want, rtol=precision, atol=precision)


@pytest.mark.slow  # ops/test_every_op.py compares each baseline
def test_compile_computes_the_same(trial):
    assert trial("layer_norm_grad", "compile", "bfloat16", M=33, N=65).complaint_after_call() is None
