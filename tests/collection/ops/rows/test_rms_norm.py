"""What the kernels of rms_norm are compiled for, and what PyTorch computes. test_norm.py has the rest."""

from __future__ import annotations

import pytest

from harness.collection.ops.rows import _norm as norm
from harness.collection.ops.rows.rms_norm import _rms_norm

# Each team of `tuned`, ragged and not, with one row at once and more; from one element a thread to as many as
# `registers` takes.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (1000, 1),
        (1000, 3),
        (1000, 16),
        (1000, 128),
        (1000, 264),
        (1000, 640),
        (1000, 896),
        (1000, 256),
        (1000, 257),
        (1000, 1023),
        (1000, 1500),
        (1000, 4096),
        (1000, 16_384),
        (1000, 32_768),
        (1, 65_536),
        (200, 65_533),
        (1000, 2**18),
        (10_000, 1024),
        (10_000, 65_536),
        (10_000, 131_072),
    ]
]


@pytest.mark.parametrize("columns", [1, 5, 300])
def test_the_reference_is_what_pytorch_computes(columns):
    import torch

    x = torch.randn((20, columns), dtype=torch.float64, generator=torch.Generator().manual_seed(columns))
    made = norm.rms_normalised(x)
    torch.testing.assert_close(made.xhat, torch.nn.functional.rms_norm(x, [columns], eps=norm.EPS), rtol=1e-6, atol=0)


def test_eager_is_the_public_function(dtype):
    import torch

    x, gamma = torch.randn((20, 300)).to(getattr(torch, dtype)), torch.randn(300).to(getattr(torch, dtype))
    assert torch.equal(_rms_norm(x, gamma)[0], torch.nn.functional.rms_norm(x, [300], gamma, norm.EPS))
