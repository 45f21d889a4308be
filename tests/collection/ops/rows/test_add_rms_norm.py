"""RMSNorm with a residual: what its kernels are compiled for, and its check."""

from __future__ import annotations

import pytest

# Lanes of a warp, blocks of one row and of two, clusters; from one pack a thread to eight; rows without a plan.
COMPILED = [
    {"M": rows, "N": columns}
    for rows, columns in [
        (1000, 77),
        (1000, 128),
        (10_000, 256),
        (10_000, 512),
        (10_000, 2048),
        (10_000, 4096),
        (10_000, 5120),
        (1, 8192),
        (10_000, 8192),
        (1000, 9000),
        (10_000, 14_336),
        (10_000, 32_768),
        (10_000, 65_536),
        (10_000, 131_072),
        (1, 2**18),
    ]
]


@pytest.mark.parametrize("columns", [1, 3, 64, 1000])
def test_eager_is_right(trial, dtype, columns):
    assert trial("add_rms_norm", "eager", dtype, M=50, N=columns).complaint_after_call() is None


@pytest.mark.parametrize("output", ["sum", "y", "rstd"])
def test_the_check_sees_a_wrong_element(trial, output):
    made = trial("add_rms_norm", "eager", "float32", M=7, N=100)
    found = made.complaint_after_call(lambda t: getattr(t, output)[5:6].mul_(1.0001).add_(1e-4))
    assert found is not None
    assert found.startswith(f"{output}: ")
