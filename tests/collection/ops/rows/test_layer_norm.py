"""What the kernels of layer_norm are compiled for, and what PyTorch computes. test_norm.py has the rest."""

from __future__ import annotations

import pytest

from harness.collection.ops.rows import _norm as norm

# Each team of `tuned`, ragged and not, with one row at once and more; from one element a thread to as many as
# `registers` takes.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (1000, 1),
        (1000, 3),
        (1000, 16),
        (1000, 64),
        (1000, 264),
        (1000, 640),
        (1000, 896),
        (1000, 200),
        (1000, 256),
        (1000, 257),
        (1000, 1000),
        (1000, 1023),
        (1000, 1500),
        (10_000, 4096),
        (10_000, 14_336),
        (1000, 8192),
        (1000, 16_384),
        (1000, 32_768),
        (1000, 65_536),
        (1, 65_536),
        (200, 65_533),
        (8, 2**18),
        (1000, 100_000),  # these in turn, and of halves the next one
        (1000, 131_072),
        (1000, 2**18),
    ]
]
SPILLED = 16


@pytest.mark.parametrize("columns", [1, 5, 300])
def test_the_reference_is_what_pytorch_computes(columns):
    import torch

    x = torch.randn((20, columns), dtype=torch.float64, generator=torch.Generator().manual_seed(columns))
    y, mean, rstd = torch.native_layer_norm(x, [columns], None, None, norm.EPS)
    made = norm.layer_normalised(x)
    torch.testing.assert_close(made.xhat, y, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(made.mean, mean.view(-1))
    torch.testing.assert_close(made.rstd, rstd.view(-1), rtol=1e-6, atol=0)
