"""Copies on a GPU: every byte, nothing else."""

from __future__ import annotations

import pytest

COMPILED = [{"N": 1000}, {"N": 1001}]
VARIANTS = ["memcpy", "stream", "stream2", "stream4"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 7, 255, 4096, 100_003, 2**22 + 1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_sizes(launch, variant, n, dtype):
    check(launch, variant, n, dtype, 0, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("offsets", [(1, 0), (0, 1), (1, 1), (3, 2), (4, 4)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_unaligned_addresses(launch, variant, offsets):
    for n in (1, 17, 4099):
        check(launch, variant, n, "float32", *offsets)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", VARIANTS)
def test_more_than_2_to_31_elements(launch, variant):
    check(launch, variant, 2**31 + 5, "float16", 0, 0)


def check(launch, variant, n, dtype, x_offset, y_offset):
    import torch

    kind = getattr(torch, dtype)
    x = torch.randn(n + 16, device="cuda", dtype=kind)[x_offset : x_offset + n]
    buffer = torch.full((n + 16,), -1, device="cuda", dtype=kind)
    y = buffer[y_offset : y_offset + n]
    launch("copy", variant, dtype, {"N": n}, x=x, y=y)
    assert torch.equal(x, y)
    assert bool((buffer[:y_offset] == -1).all())
    assert bool((buffer[y_offset + n :] == -1).all())
